"""Report: everything people see. It reads files and computes nothing that is not in results."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.report.claims.check import check_claims as check_claims
    from specbench.report.gathering import gather as gather
    from specbench.report.gathering import newest as newest
    from specbench.report.page.build import build_what_can_be as build_what_can_be
    from specbench.report.page.write import write_report as write_report
    from specbench.report.tables.run import headline as headline
else:
    __getattr__, __dir__ = door(__name__)
