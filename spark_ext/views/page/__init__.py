"""What the web page, the report and `spark-ext top` show of a job: one document of plain JSON, made from the ledger."""
