"""Everything that people see: tables, reports, charts and races, from the figures that analysis computes."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.report.answers.generation import Generation as Generation
    from specbench.report.answers.generation import generation_data as generation_data
    from specbench.report.answers.race import race as race
    from specbench.report.answers.race_page import write_race as write_race
    from specbench.report.answers.race_view import play_race as play_race
    from specbench.report.answers.race_view import race_data as race_data
    from specbench.report.answers.round_tree import RoundTree as RoundTree
    from specbench.report.answers.states_grid import TrajectoryGrid as TrajectoryGrid
    from specbench.report.charts.acceptance import save_acceptance as save_acceptance
    from specbench.report.charts.roofline import draw_datasheet as draw_datasheet
    from specbench.report.charts.roofline import write_profile_charts as write_profile_charts
    from specbench.report.charts.round_chart import round_svg as round_svg
    from specbench.report.charts.states_chart import trajectory_svg as trajectory_svg
    from specbench.report.charts.sweep_cells import drawn_cells as drawn_cells
    from specbench.report.charts.sweep_charts import write_sweep_charts as write_sweep_charts
    from specbench.report.charts.training_cost import save_training_cost as save_training_cost
    from specbench.report.claims.catalog import Claim as Claim
    from specbench.report.claims.catalog import published_claims as published_claims
    from specbench.report.claims.check import check_claims as check_claims
    from specbench.report.claims.check_brief import check_brief as check_brief
    from specbench.report.claims.check_tables import check_data as check_data
    from specbench.report.claims.check_tables import check_report as check_report
    from specbench.report.claims.forecast import forecast_table as forecast_table
    from specbench.report.claims.listing import claim_data as claim_data
    from specbench.report.claims.listing import claims_report as claims_report
    from specbench.report.claims.listing import select_claims as select_claims
    from specbench.report.claims.reproductions import check_picture as check_picture
    from specbench.report.claims.reproductions import compare_published as compare_published
    from specbench.report.claims.reproductions import find_reproduction as find_reproduction
    from specbench.report.claims.reproductions import reproduction_report as reproduction_report
    from specbench.report.claims.reproductions import reproductions as reproductions
    from specbench.report.claims.reproductions import reproductions_report as reproductions_report
    from specbench.report.gathering import gather as gather
    from specbench.report.gathering import newest as newest
    from specbench.report.gathering import newest_in as newest_in
    from specbench.report.imports.tables import import_report as import_report
    from specbench.report.imports.tables import served_comparison as served_comparison
    from specbench.report.page.build import build_what_can_be as build_what_can_be
    from specbench.report.page.build import vocabulary as vocabulary
    from specbench.report.page.write import write_report as write_report
    from specbench.report.render.frames import export_table as export_table
    from specbench.report.render.frames import export_tables as export_tables
    from specbench.report.render.frames import frame_csv as frame_csv
    from specbench.report.render.terminal import render_terminal as render_terminal
    from specbench.report.tables.acceptance import curves_frame as curves_frame
    from specbench.report.tables.acceptance import curves_table as curves_table
    from specbench.report.tables.acceptance import definitions_report as definitions_report
    from specbench.report.tables.acceptance import gate_report as gate_report
    from specbench.report.tables.brief import run_brief as run_brief
    from specbench.report.tables.comparison import comparison_report as comparison_report
    from specbench.report.tables.comparison import comparison_row as comparison_row
    from specbench.report.tables.dry_run import dry_run_report as dry_run_report
    from specbench.report.tables.lossless import lossless_report as lossless_report
    from specbench.report.tables.model_quality import quality_report as quality_report
    from specbench.report.tables.run_parts import check_table as check_table
    from specbench.report.tables.run_parts import judgment_report as judgment_report
    from specbench.report.tables.run_parts import projection_table as projection_table
    from specbench.report.tables.run_table import finding as finding
    from specbench.report.tables.run_table import run_report as run_report
    from specbench.report.tables.run_title import sweep_title as sweep_title
    from specbench.report.tables.step_cost import profile_report as profile_report
    from specbench.report.tables.sweep import sweep_advice as sweep_advice
    from specbench.report.tables.sweep import sweep_report as sweep_report
    from specbench.report.tables.trainings import training_costs as training_costs
    from specbench.report.tables.trainings import trainings_report as trainings_report
    from specbench.report.two_axes import Layout as Layout
    from specbench.report.two_axes import crosstab as crosstab
else:
    __getattr__, __dir__ = door(__name__)
