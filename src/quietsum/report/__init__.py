"""What a privacy officer reads: the guarantee, the curve, the ledger's head, and how to check them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quietsum.doors import open_door

if TYPE_CHECKING:
    from quietsum.report.contents import (
        build as build,
        read_answers as read_answers,
        sign_report as sign_report,
        write as write,
    )
    from quietsum.report.entries import describe_entry as describe_entry
    from quietsum.report.facts.sections import hash_file as hash_file, tell_operator as tell_operator
    from quietsum.report.facts.verdict import judge_scores as judge_scores
    from quietsum.report.figures import percent as percent, show_bound as show_bound, small as small
    from quietsum.report.listing import claim_of_training as claim_of_training, list_run as list_run
    from quietsum.report.pages.page import curve as curve, render_page as render_page
    from quietsum.report.signed.checking import (
        Checked as Checked,
        check_pack_file as check_pack_file,
        check_report as check_report,
    )
    from quietsum.report.signed.packing import make_pack as make_pack
    from quietsum.report.trainings import (
        SCORES_FILE as SCORES_FILE,
        Training as Training,
        build_training as build_training,
        find_run as find_run,
        find_training as find_training,
        list_training as list_training,
    )
    from quietsum.report.verifier import (
        LARGEST_PACK as LARGEST_PACK,
        LARGEST_REPORT as LARGEST_REPORT,
        render as render,
    )
else:
    __getattr__, __dir__, __all__ = open_door(__name__)
