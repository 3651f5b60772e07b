"""Metrics of a running job: a catalogue, counters from the rows of its ledger, and ways to export them.

catalogue   which metrics there are; pure
tally       from a row of the ledger to the changes of metrics that follow from it; pure
book        the values, with a limit on their number
gauges      what is read from a snapshot when it is asked for; pure
downtime    seconds of downtime by class
recoveries  from a failure to the next committed epoch; pure
job_metrics all of it for one run of a job
prometheus, endpoint, otel   exporters; each needs an optional library
"""
