"""An Airflow DAG: compacts a store every night, and writes its groups as of the end of the run's day.

Needs a worker with the program in /opt/offsets-pipeline, and the variables STORE and AS_OF_FOLDER in its environment.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param

with DAG(
    "offsets_upkeep",
    description="Groups as of a time, and upkeep of the store",
    schedule="15 3 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    params={
        "as_of": Param(
            None,
            type=["null", "string"],
            format="date-time",
            description="Time of the answer, such as 2026-03-01T12:00:00Z. Without it: the time of the run.",
        )
    },
    default_args={"retries": 2, "retry_delay": timedelta(minutes=5)},
) as dag:
    as_of = BashOperator(
        task_id="as_of",
        bash_command=(
            '/opt/offsets-pipeline/.venv/bin/offsets as-of --store "$STORE" --time "$AS_OF" --format json '
            '> "$AS_OF_FOLDER/$AS_OF.json"'
        ),
        # Parameters are passed as variables, so that no value becomes part of the command.
        env={"AS_OF": "{{ params.as_of or dag_run.run_after.isoformat() }}"},
        append_env=True,
    )
    maintain = BashOperator(
        task_id="maintain",
        bash_command='/opt/offsets-pipeline/.venv/bin/offsets maintain --store "$STORE"',
        execution_timeout=timedelta(hours=2),
    )
    # maintain may remove history that a question needs (the setting history_hours).
    as_of >> maintain
