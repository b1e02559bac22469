"""Carry out an operation from the command line: show its plan, ask, run it, and print what was done."""

from __future__ import annotations

from reconsume.sidecar.cli.terminal.confirm import FOLLOWED, IN_WORK, ask, stop_signal
from reconsume.sidecar.cli.terminal.exit_codes import DONE
from reconsume.sidecar.cli.terminal.options import Options
from reconsume.sidecar.cli.terminal.output import each_second, talk
from reconsume.sidecar.operation import Operation, Outcome, Plan, Recorder, Report, run_recorded
from reconsume.sidecar.printable import plural

SHOWN = 20
"""Rows that a plan shows on the terminal; of more the number is printed. `--dry-run` prints all of them."""


def progress_line() -> Report:
    """Return a function that prints each second, on a terminal, how far an operation is."""
    return each_second(lambda done, of: f"{done} of at most {plural(of, 'record')}")


def carry_out(
    options: Options,
    operation: Operation,
    who: str,
    recorder: Recorder,
    *,
    yes: bool,
    dry_run: bool = False,
    goes_on: bool = False,
) -> int:
    """Plan an operation, ask the user to agree, and run it. Return the exit code.

    A dry run, or a plan of nothing, prints the plan as the result. What was done is printed after an error, too.
    `goes_on`: others carry it out, whatever ends this command; a signal then only ends the waiting for them. Raises
    BadParameter if there is no terminal to ask on, KeyboardInterrupt if a signal has stopped it, and what the operation
    raises.
    """
    from reconsume.sidecar.kafka.clients import one_operation  # the Kafka client is slow to import; --help needs none

    output = options.output
    with one_operation():
        plan = operation.plan(progress_line())
    for remark in plan.remarks:
        talk(remark)
    if dry_run or not plan.question:
        output.rows(plan.columns, plan.rows)
        if plan.nothing:
            talk(plan.nothing)
        return DONE if plan.question else plan.status
    output.talk_rows(plan.columns, plan.rows[:SHOWN])
    if len(plan.rows) > SHOWN:
        talk(f"and {len(plan.rows) - SHOWN} more; --dry-run prints all of them")
    if not yes:
        ask(plan.question, plan.agreed)
    with stop_signal(FOLLOWED if goes_on else IN_WORK) as stop:
        try:
            with one_operation():
                run_recorded(operation, who, recorder, progress_line(), stop)
        except BaseException:
            if operation.changed:
                print_outcome(options, plan, operation.outcome())
            raise
    outcome = operation.outcome()
    print_outcome(options, plan, outcome)
    if stop.is_set() and not goes_on:
        raise KeyboardInterrupt
    return outcome.status


def print_outcome(options: Options, plan: Plan, outcome: Outcome) -> None:
    """Print what was done: rows that the user has not seen in the plan, and sentences."""
    options.output.rows_after(plan.rows, plan.columns, outcome.rows or plan.rows)
    for sentence in outcome.sentences:
        talk(sentence)
