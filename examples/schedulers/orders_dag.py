"""A DAG of Airflow that runs a job every hour, never twice at once."""

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

with DAG("orders", schedule="@hourly", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=1):
    BashOperator(
        task_id="load",
        bash_command=".venv/bin/spark-ext run job.py --until now --short-lived --no-progress",
        cwd="/srv/orders",
        skip_on_exit_code=[3, 9],  # somebody has stopped the job; another run is under way
        retries=2,  # each continues where the failed attempt was
        retry_delay=timedelta(minutes=5),
    )
