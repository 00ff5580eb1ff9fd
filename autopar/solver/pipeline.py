"""The search over layouts: pipeline stages, axes with roles inside of each, microbatches, schedules and cuts.

In: a case, the cost model of a cluster, constraints, a memory limit, the time of the best plan so far. Out: the best staged plan, and what bounds all
others. The way: every layout has a bound and, once its place was priced, a guess. Prices are made where they may change the answer, cheapest first
(`layout_prices`): while a guess is below the best plan, that layout is priced, simulated, solved with memory (`layout_solve`); then the layout with the
lowest bound is priced until its bound says that it cannot win, or nothing is left to ask. Of the best ones the ranks of dp are put in groups (`group_ranks`), and single stages get other degrees (`vary_stages`). Invariant: the bound of a layout holds for every plan with
its stages, mesh and microbatches, wherever it is cut (with several chunks per stage: where its costs said when it was bounded).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf, prod

from ..cluster import num_devices
from ..constraints import PIPELINE
from ..cost.model import CostModel
from ..errors import ConstraintError, MicrobatchError
from ..graph.plan import Pruned
from ..graph.schedules.known import splits_backward
from ..graph.stages import list_units
from ..graph.turns import has_backward
from .group_ranks import is_plain, list_groupable, may_group_ranks
from .growths import Growths
from .layout_cases import LayoutCases, Turned
from .layout_guess import Cut, bound_at_cuts, bound_layout, cut_units, guess_seconds, has_given_cuts, memory_factor, sharpen_bound, simulate_guess
from .layout_prices import LayoutPrices, Tier
from .layout_solve import LayoutSolver, Staged, Unsolved
from .layouts import (
    Layout,
    divisors,
    layout_ranks,
    least_seconds,
    list_places,
    list_schedules,
    list_turns,
    num_samples,
    print_layout,
)
from .open_layouts import Open, OpenPlace, Step, by_count, by_place, least_bound, next_step, shares_work
from .role_meshes import check_sequence
from .unit_costs import UnitCosts
from .unit_stages import count_cuts, why_no_cuts
from .vary_stages import Varied, list_varied, may_vary

_GAP = 1e-3
_CLOSE = 0.008  # a gap at which nobody looks for a better bound
_TRUST = 0.97  # what is expected to take up to 3 % more than the best plan is still tried
_WORTH_OTHERS, _FAR_OTHERS, _MOST_VARIED = 0.005, 2.0, 4  # other degrees on some stages are tried for no less, as a share; of so many layouts, up to so many times the best plan
_WORTH = 1.01  # where only a price is asked for: what is expected to be less than 1 % faster is not tried
_NEAR, _SPARE = 1.08, 8  # a guess may be so much too high; time for so many solves has to be left to try it
_SPARE_BETTER = 2  # and for so many to try a guess that is better than the best plan, though such guesses have proved too low
_LARGE = 3000  # nodes
_GLANCE = 0.4  # of the time, for a first price of every place that may be good
_HOPELESS = 1.5  # who takes at least so many times as long as the fastest of a place may is not what its prices are for
_FAR = 1.1  # who takes more than so many times the best guess has none yet
_HURRY = 0.5  # of the time: who has no plan by then solves the layout that is expected to be best, without looking closer at others
_MOST, _MOST_MORE = 10, 16  # layouts are solved with memory by their guess (and so many with other degrees on some stages), and in all
_MOST_TRIED = 3  # layouts with the ranks of dp in groups are solved
_MOST_LATE = 2  # when time is up and there is no plan


@dataclass(frozen=True, slots=True)
class StagedResult:
    """What the search found: the best plan, if any is better than what was known, and the least that the other layouts may take."""

    best: Staged | None
    bound_s: float
    num_layouts: int
    num_solved: int
    wall_s: float
    pruned: tuple[Pruned, ...]


@dataclass(slots=True)
class PipelineSearch:
    """One search; lives for one call of `run`."""

    cases: LayoutCases
    model: CostModel
    limit_bytes: int
    deadline: float
    report: Callable[[str], None]
    most_stages: int | None = None
    plain_too: bool = False  # one stage with one microbatch, as well
    price_only: bool = False  # what the asked layouts take, within about 1 %: no time goes into bounds, nor into gains below that
    cut: Cut = cut_units  # where models are cut (`layout_solve.LayoutSolver`); another one only for a price, for bounds of chunks are about the best cuts
    best: Staged | None = None
    best_s: float = inf
    pruned: dict[Pruned, None] = field(default_factory=dict)
    num_solved: int = 0
    num_late: int = 0  # of these, when time was up
    slowest_s: float = 0.0  # of the solves so far
    growths: Growths = field(init=False)
    prices: LayoutPrices = field(init=False)
    solver: LayoutSolver = field(init=False)
    last: bool = False  # nothing else is searched afterwards: the time that is left may all go into one layout
    hurry: float = inf  # from then on a plan comes before better guesses
    every: list[Open] = field(default_factory=list)
    places: list[OpenPlace] = field(default_factory=list)
    grouped: set[Layout] = field(default_factory=set)  # with the ranks of dp in groups: those that were tried
    varied: set[Layout] = field(default_factory=set)  # with other degrees on some stages: those that were tried
    wall_s: float = 0.0

    def __post_init__(self) -> None:
        self.growths = Growths(self.price_only)
        self.prices = LayoutPrices(self.cases, self.model, ())
        self.solver = LayoutSolver(self.cases, self.model, self.limit_bytes, self.cut)

    def run(self, cutoff_s: float, last: bool = False) -> None:
        """Search. Plans that take `cutoff_s` or longer are of no interest; `last`: see there."""
        self.last = last
        began, self.best_s = time.monotonic(), cutoff_s
        self.hurry = began + _HURRY * (self.deadline - began)
        self.every = self.list_open()
        self.places = by_place(self.every)
        if self.prices.is_launch_bound(num_devices(self.model.cluster)):  # then what crosses between stages takes long, and is known without a price
            for place in self.places:
                self._price_place(place, Tier.FLOOR)
            alone = [place for place in self.places if not shares_work(place)]  # cheap, and what is guessed of them is right
            for place in alone:
                if time.monotonic() < self.deadline:
                    self._price_place(place, Tier.ALL)
            self._follow_guesses(alone)
        self._glance(self.places, began)
        self._follow(began)

    def go_on(self, deadline: float, cutoff_s: float) -> None:
        """Search on, where time was up before; `cutoff_s` as in `run`."""
        began, self.deadline, self.best_s, self.last = time.monotonic(), deadline, min(self.best_s, cutoff_s), True
        self._follow(began)

    def _follow(self, began: float) -> None:
        self._follow_guesses(self.places)
        self._group_ranks()
        if not self.price_only:
            self._raise_bounds(self.places)
            self._follow_all(self.places)
            self._vary()
            self._search_failed(self.places)
            if self.last:
                self._raise_bounds(self.places)
        self.wall_s += time.monotonic() - began

    def has_proven_none(self) -> bool:
        """There is no plan of any layout."""
        return all(each.gone for each in self.every)

    def result(self) -> StagedResult:
        """What was found; the plan is one of the whole graph."""
        bound = min([inf, *(e.bound_s for e in self.every if not e.gone)])
        left = sum(1 for e in self.every if not (e.solved or e.gone or self._is_beaten(e)))
        if left:
            self._prune(f"{left} layouts", "not solved with memory: --time-limit was up, or enough had been; their bounds count")
        best = self.solver.finish(self.best) if self.best is not None and self.best.step_s <= self.best_s else None
        return StagedResult(best, max(bound, 0.0), len(self.every), self.num_solved, self.wall_s, tuple(self.pruned))

    # --- what there is

    def list_open(self) -> list[Open]:
        """Every layout that the cluster, the batch and the constraints allow, with the bound of its work."""
        found = self.cases.turned(1)
        if isinstance(found, str):
            self._prune("microbatches and stages", found)
            return []
        batch, devices = num_samples(found.roles), num_devices(self.model.cluster)
        layouts = list(self._list_layouts(batch, 1))
        if not self.cases.constraints and self.prices.is_launch_bound(devices):
            layouts += [each for spare in divisors(devices) if spare > 1 for each in self._list_layouts(batch, spare)]
        if found.homes:
            layouts = self._keep_cut(layouts, found)
        layouts = self._keep_divisible(layouts, found, 1)
        several = sorted({each.num_microbatches for each in layouts} - {1})
        if several:
            told = self.cases.turned(several[0])
            if isinstance(told, str):
                self._prune("more than one microbatch", told)
                layouts = [each for each in layouts if each.num_microbatches == 1]
            else:
                layouts = self._keep_divisible(layouts, told, several[0])
        self.prices.counts = tuple(sorted({each.num_microbatches for each in layouts}))
        return [Open(each, least_seconds(each, *self.prices.floor_s(each.place, each.num_microbatches))) for each in layouts]

    def _keep_divisible(self, layouts: list[Layout], turned: Turned, least: int) -> list[Layout]:
        """The layouts whose chunks are no more than the units; of one microbatch, or (`least` above 1) of several."""

        def has_units(each: Layout) -> bool:
            return (each.num_microbatches == 1) is not (least == 1) or len(layout_ranks(each)) <= turned.num_units

        kept = [each for each in layouts if has_units(each)]
        if not kept and layouts:
            each, among = layouts[0], "" if least == 1 else "; what no microbatch changes is no part"
            self._prune(print_layout(each), f"needs {len(layout_ranks(each))} parts, the model can be cut into {turned.num_units} (between its numbered modules{among})")
        return kept

    def _keep_cut(self, layouts: list[Layout], turned: Turned) -> list[Layout]:
        """The layouts of which some cuts put every module on its stage."""
        kept, words = [], self.cases.constraints
        for each in layouts:
            if count_cuts(len(turned.homes), layout_ranks(each), turned.homes):
                kept.append(each)
            elif not kept:
                self._prune(print_layout(each), why_no_cuts(turned.case.graph, words, layout_ranks(each)))
        return kept

    def _list_layouts(self, batch: int, spare: int) -> Iterable[Layout]:
        rows, cluster = list_units(self.cases.case.graph), self.model.cluster
        asked, trains = dict(self.cases.constraints.degrees).get(PIPELINE), has_backward(self.cases.case.graph)
        most = 1 if self.cases.constraints.only is not None else self.most_stages or len(rows)
        makes = prod(degree for _, degree in self.cases.constraints.degrees)
        if asked is not None and asked > most and num_devices(cluster) % makes == 0:  # else that the degrees do not make the cluster is the first thing to say
            units = f"has {len(rows)} units between which it may be cut" if len(rows) > 1 else "is one unit, and may be cut only between units"
            why = f"this command needs a plan in {most} stage" if self.most_stages else f"the model {units}"
            raise ConstraintError(f"pp={asked}: {why}; leave it out")
        places = list_places(num_devices(cluster), cluster.devices_per_host, min(most, len(rows)), self.cases.constraints, spare)
        if places:  # else that there are none is the first thing to say
            check_sequence(self.cases.constraints, self.cases.roles(self.cases.case))
        for place in places:
            for turns in list_turns(place, batch, self.cases.constraints):
                if place.num_stages == 1 and turns == 1 and (spare > 1 or not self.plain_too):
                    continue  # any mesh is searched for it (`search`)
                yield from list_schedules(place, turns, len(rows), self.cases.constraints, trains)

    # --- prices

    def _glance(self, places: list[OpenPlace], began: float) -> None:
        """The price of the main unit of each place whose bound is not far above the best guess so far, in the order of bounds, as long as there is time; where no plan
        is known, of one in any case."""
        while True:
            hopes = self._list_hopes(places)
            if time.monotonic() > began + _GLANCE * (self.deadline - began) and (self.best_s < inf or hopes):
                return
            place = self._next_place(places)
            if place is None or (hopes and least_bound(place) > _FAR * min(each.guess_s for _, each in hopes)):
                return
            self._price_place(place, Tier.MAIN if place.tier is Tier.FLOOR else Tier.FLOOR)

    def _next_place(self, places: list[OpenPlace]) -> OpenPlace | None:
        """The one with the least bound of which nothing is priced."""
        return min((p for p in places if p.tier < Tier.MAIN and not self._is_over(p)), key=least_bound, default=None)

    def _price_place(self, place: OpenPlace, tier: Tier) -> None:
        """Raise the bounds of a place's layouts by prices for the fewest microbatches that may be good, and guess what they take. Without turns the units of a
        small graph may be others: then by prices for one microbatch, and for the fewest beyond that."""
        if self._is_over(place):
            return
        if place.tier < Tier.MAIN:
            most = _HOPELESS * least_bound(place)
            place.count = min(each.layout.num_microbatches for each in place.rows if each.bound_s <= most and not each.gone)
        place.tier, fewest = tier, 0
        for count, rows in by_count(place.rows):
            if count < place.count or all(each.gone or self._is_beaten(each) for each in rows):
                continue
            if not fewest or not self.prices.may_stretch(fewest, count):
                fewest = self.prices.base(count) if tier is Tier.FLOOR else count  # floors of any number are those of the same graph
            costs = self._costs(place, fewest, tier, 1, count)
            for each in rows if costs is not None else ():
                each.tier, each.base = tier, fewest
                self._learn(place, each, costs)

    def _price_layout(self, place: OpenPlace, each: Open, base: int) -> None:
        """The price of a layout with its runs of units, between cuts, and what drains at its end.

        Args:
            base: number of microbatches whose graph is asked; 0: its own.
        """
        count = each.layout.num_microbatches
        each.tier, each.base = Tier.RUN, base or count
        costs = self._costs(place, each.base, Tier.RUN, each.layout.chunks, count)
        if costs is not None:
            each.gone = each.gone or place.place.num_stages * each.layout.chunks > len(costs.step_s)
            self._learn(place, each, costs)

    def _sharpen(self, place: OpenPlace, each: Open, costs: UnitCosts) -> None:
        """Raise the bound of a layout by what drains.

        Args:
            costs: for its number of microbatches.
        """
        layout = each.layout
        if place.place.num_stages == 1 or each.gone or self._is_beaten(each):
            return
        phases = self.prices.phases(place.place, each.base, layout.num_microbatches)
        if has_given_cuts(layout):
            each.any_s = max(each.any_s, least_seconds(layout, sum(phases.loop_s) / layout.num_microbatches))
            if each.tier is Tier.RUN:  # by these prices it is cut, and solved there
                cuts = self._cuts(each, costs)
                each.at_cuts_s = max(bound_at_cuts(layout, costs, phases, cuts), each.joint_s.get(cuts, 0.0)) if cuts is not None else inf
            return
        bound, cuts = sharpen_bound(layout, costs, phases, each.joint_s)
        each.cuts, each.any_s = cuts if self.cut is cut_units else None, max(each.any_s, bound)  # who cuts elsewhere is asked where
        if each.cuts is not None and not shares_work(place) and not each.solved:  # nothing is resharded: what the units tell is what a stage takes
            cuts, least = self._faster_cuts(each, costs), bound
            if cuts != each.cuts:
                least = max(bound, simulate_guess(layout, costs, cuts))
            each.guess_s, each.simulated = least * memory_factor(layout, costs, cuts, self.limit_bytes), each.is_own

    def _faster_cuts(self, each: Open, costs: UnitCosts) -> tuple[int, ...]:
        """The cuts that hold the bound down, or the best by the costs of units where these are faster with the schedule played: a bound need not know all that drains (of GPipe both passes do)."""
        assert each.cuts is not None
        told = self._cuts(each, costs)
        return each.cuts if told in (None, each.cuts) else min((each.cuts, told), key=lambda cuts: simulate_guess(each.layout, costs, cuts))

    def _cuts(self, each: Open, costs: UnitCosts) -> tuple[int, ...] | None:
        """Where a layout is cut, by the costs of units: once it has its own run priced, as it is solved."""
        return each.own_cuts or (self.solver.where_to_cut if each.tier is Tier.RUN else self.solver.first_cuts)(each.layout, costs)

    def _costs(self, place: OpenPlace, base: int, tier: Tier, chunks: int, count: int) -> UnitCosts | None:
        """In `count` microbatches by the graph of `base`; None where the place cannot obey, or the model not run in so many microbatches."""
        try:
            return self.prices.costs(place.place, base, tier, (chunks,), count)
        except (ConstraintError, MicrobatchError) as error:
            self._prune(print_layout(Layout(place.place, base)), str(error))
            for each in place.rows:
                each.gone = each.gone or each.layout.num_microbatches == base
            return None

    def _learn(self, place: OpenPlace, each: Open, costs: UnitCosts) -> None:
        """What prices tell of a layout: a bound, and unless they are floors, a guess."""
        each.any_s = max(each.any_s, bound_layout(each.layout, costs))
        costs = costs.in_chunks(each.layout.chunks)
        cuts = self._cuts(each, costs) if each.layout.place.num_stages * each.layout.chunks <= len(costs.step_s) else None
        if cuts is not None and each.tier > Tier.FLOOR and not each.solved and not self._is_beaten(each):
            slower = memory_factor(each.layout, costs, cuts, self.limit_bytes)
            each.guess_s, each.simulated = max(guess_seconds(each.layout, costs, cuts) * slower, each.bound_s), False
            each.tight = slower > 1.0
        if each.tier is Tier.RUN or (each.tier is Tier.ALL and not shares_work(place)):
            self._sharpen(place, each, costs)

    # --- plans

    def _follow_guesses(self, places: list[OpenPlace]) -> None:
        """Best guess first: priced, simulated, solved with memory, as long as what it is expected to become is below the best plan. Where no plan is known after
        a part of the time, it is solved at once, and when time is up, in any case: the user asked for a plan."""
        trust = _WORTH if self.price_only else _TRUST
        while self.num_solved < _MOST and (time.monotonic() < self.deadline or self.best_s == inf):
            place, each = min(self._list_hopes(places), key=lambda row: self.growths.expect(*row), default=(None, None))
            if place is None and self.best_s == inf and (fresh := self._next_place(places)) is not None:  # nothing fitted of what was looked at
                self._price_place(fresh, Tier.MAIN)
                continue
            if place is None or each is None or trust * self.growths.expect(place, each) >= self.best_s:
                return
            if time.monotonic() >= self.deadline:  # a plan in any case, but nothing beside it
                self.num_late += 1
                if self.num_late <= _MOST_LATE:
                    self._solve(*min(self._list_hopes(places), key=lambda row: row[1].guess_s))
                    continue
                return
            hurries = self.best_s == inf and time.monotonic() >= self.hurry
            step, before, tight = Step.SOLVE if hurries else next_step(place, each), each.guess_s, each.tight
            self._take_step(step, place, each)
            if not (each.gone or hurries):
                self.growths.note(place, tight, step, each.guess_s / before)

    def _follow_all(self, places: list[OpenPlace]) -> None:
        """What no bound rules out and whose guess is little more than the best plan takes, where that costs little of the time."""
        while self.num_solved < _MOST_MORE:
            place, each = min(self._list_hopes(places), key=lambda row: row[1].guess_s, default=(None, None))
            if place is None or each is None or each.guess_s >= _NEAR * self.best_s:
                return
            spare = _SPARE_BETTER if each.guess_s < self.best_s else _SPARE
            if time.monotonic() >= self.deadline - spare * self.slowest_s:
                return
            self._take_step(next_step(place, each), place, each)

    def _vary(self) -> None:
        """Other degrees on some stages of the best layouts, best guess first, as long as that gives a better plan. Such a layout is one of those that are searched once
        it is the best."""
        while len(self.varied) < _MOST and time.monotonic() < self.deadline - _SPARE_BETTER * self.slowest_s:
            rows = [row for each in self._list_variable() for row in self._list_varied(each) if row.layout not in self.varied]
            best = min(rows, key=lambda row: row.guess_s, default=None)
            if best is None or best.guess_s >= self.best_s * (1 - _WORTH_OTHERS):
                return
            self.varied.add(best.layout)
            place, each = self._price_alone(best.layout, best.cuts)
            if not each.gone:
                self._solve_alone(place, each)

    def _group_ranks(self) -> None:
        """The best layouts whose axis of dp spans hosts, with groups of its ranks on a host each, as long as there is time. Such a layout is one of
        those that are searched once it is the best. Not where the best plan is one of a mesh, or in one stage and one microbatch as those are: meshes have such groups."""
        if self.best is None or self.best.step_s > self.best_s or is_plain(self.best.layout) or not may_group_ranks(self.cases.constraints):
            return
        tried = 0
        for layout in list_groupable(self.every, self.best_s, self.model.cluster.devices_per_host):
            if tried == _MOST_TRIED or time.monotonic() >= self.deadline - self.slowest_s / 2:
                return
            if layout in self.grouped:
                continue
            self.grouped.add(layout)
            place, each = self._price_alone(layout, None)
            most = self.best_s * (1 - _WORTH_OTHERS)
            if not each.gone and each.bound_s < most and (each.tight or each.guess_s < most):  # a guess for a tight memory may be far too high
                tried += 1
                self._solve_alone(place, each)

    def _list_variable(self) -> list[Open]:
        """The best layouts in stages, by what is known of them: one for each number of stages, microbatches and chunks, for degrees are what changes. Of a large model the
        best alone, if it is the plan."""
        constraints, large = self.cases.constraints, len(self.cases.case.graph.nodes) >= _LARGE
        most = self.best_s * (_NEAR if large else _FAR_OTHERS)
        rows = [e for e in self.every if e.tier is Tier.RUN and e.is_own and not e.gone and e.likely_s <= most and may_vary(e.layout, constraints)]
        found: dict[tuple[int, int, str, int], Open] = {}
        for each in sorted(rows, key=lambda e: e.likely_s):
            layout = each.layout
            found.setdefault((layout.place.num_stages, layout.num_microbatches, layout.schedule, layout.chunks), each)
        best = [each for each in found.values() if not large or (self.best is not None and each.layout == self.best.layout)]
        return best[:_MOST_VARIED]

    def _list_varied(self, each: Open) -> list[Varied]:
        layout, chunks = each.layout, each.layout.chunks
        costs = self.prices.costs(layout.place, layout.num_microbatches, Tier.RUN, (chunks,)).in_chunks(chunks)
        cuts = each.tried if each.solved and each.tried is not None else self._cuts(each, costs)
        if cuts is None:
            return []
        batch, near = num_samples(self.cases.roles(self.cases.case)), self.model.cluster.devices_per_host
        return list_varied(layout, cuts, each.likely_s, self.prices, self.limit_bytes, batch, near)

    def _price_alone(self, layout: Layout, cuts: tuple[int, ...] | None) -> tuple[OpenPlace, Open]:
        """A layout that is none of those that are listed, priced. Args: cuts: the only ones."""
        each = Open(layout, 0.0, own_cuts=cuts)
        place = OpenPlace(layout.place, [each])
        self._price_place(place, Tier.ALL)
        if not each.gone:
            self._price_layout(place, each, layout.num_microbatches)
        return place, each

    def _solve_alone(self, place: OpenPlace, each: Open) -> None:
        """Solve it; it is one of those that are searched once it is the best."""
        before = self.best
        self._solve(place, each, each.own_cuts)
        if self.best is not before:
            self.every.append(each)
            self.places.append(place)

    def _search_failed(self, places: list[OpenPlace]) -> None:
        """Layouts that had too little time for a plan, best guess first, with all that is left."""
        while self.last and time.monotonic() < self.deadline:
            rows = [(place, e) for place in places for e in place.rows if e.failed and not (e.searched or self._is_beaten(e)) and e.guess_s < self.best_s * (1 - _GAP)]
            place, each = min(rows, key=lambda row: row[1].guess_s, default=(None, None))
            if place is None or each is None:
                return
            self._search_on(place, each)

    def _search_on(self, place: OpenPlace, each: Open) -> None:
        each.searched = True
        self._solve(place, each)

    def _list_hopes(self, places: list[OpenPlace]) -> list[tuple[OpenPlace, Open]]:
        return [(place, e) for place in places for e in place.rows if e.guess_s < inf and not (e.solved or e.gone or self._is_beaten(e))]

    def _take_step(self, step: Step, place: OpenPlace, each: Open) -> None:
        if step is Step.UNITS:
            self._price_place(place, Tier(place.tier + 1))
        elif step in (Step.RUN, Step.OWN):
            self._price_layout(place, each, each.base if step is Step.RUN else each.layout.num_microbatches)
        elif step is Step.SIMULATE:
            self._simulate(place, each)
        else:
            self._solve(place, each, None if shares_work(place) or each.cuts is None else self._faster_cuts(each, self._own_costs(place, each)))

    def _own_costs(self, place: OpenPlace, each: Open) -> UnitCosts:
        """For its own number of microbatches, with its runs of units."""
        return self.prices.costs(place.place, each.layout.num_microbatches, Tier.RUN, (each.layout.chunks,)).in_chunks(each.layout.chunks)

    def _simulate(self, place: OpenPlace, each: Open) -> None:
        costs = self._own_costs(place, each)
        cuts = self._cuts(each, costs)
        assert cuts is not None, "what has no cuts is not guessed"
        slower = memory_factor(each.layout, costs, cuts, self.limit_bytes)
        each.simulated, each.guess_s = True, max(each.bound_s, simulate_guess(each.layout, costs, cuts) * slower)

    def _raise_bounds(self, places: list[OpenPlace]) -> None:
        """Ask for what the layout with the lowest bound still hides, as long as that bound is what keeps the gap open. Where nothing else is searched afterwards,
        also for the bound of stages with one plan for all phases, which takes as long as making their problems."""
        rows = [(place, each) for place in places for each in place.rows]
        while time.monotonic() < self.deadline:
            lowest = min(((each.bound_s, k) for k, (_, each) in enumerate(rows) if not each.gone), default=(inf, -1))
            if lowest[0] >= self.best_s * (1 - _CLOSE):
                return
            place, each = rows[lowest[1]]
            if place.tier < Tier.ALL:
                self._price_place(place, Tier(place.tier + 1))
            elif each.tier < Tier.RUN:
                self._price_layout(place, each, each.base)
            elif not each.is_own:
                self._price_layout(place, each, each.layout.num_microbatches)
            elif self._price_path(place, each) or self._price_pieces(place, each) or (self.last and self._bound_jointly(place, each)):
                continue
            elif each.layout.place.num_stages == 1 and not each.solved and self.num_solved < _MOST_MORE:
                self._solve(place, each)  # which raises its bound
            elif self.last and each.layout.place.num_stages == 1 and each.layout.num_microbatches > 1 and not each.searched:  # what is left is its integer program's own gap
                self._search_on(place, each)
            elif not self._try_cuts(place, each):
                return

    def _price_path(self, place: OpenPlace, each: Open) -> bool:
        """Price the path of its only microbatch through all stages; False where that was done before, or does not tell."""
        layout = each.layout
        if each.path_s is not None or layout.num_microbatches > 1 or layout.place.num_stages == 1 or splits_backward(layout.schedule) or not shares_work(place):
            return False
        each.path_s = self.prices.path_s(layout.place, layout.num_microbatches, self.deadline, self.best_s)
        each.any_s = max(each.any_s, each.path_s)
        return True

    def _price_pieces(self, place: OpenPlace, each: Open) -> bool:
        """Price as one piece each stage of the cuts that hold a bound down; False where all of them were priced before."""
        alone = place.place.num_stages == 1
        cuts = () if alone else each.cuts
        if cuts is None or (alone and not shares_work(place)):
            return False
        ends = list(zip((0, *cuts), (*cuts, len(self.prices.costs(place.place, each.layout.num_microbatches, Tier.FLOOR).step_s))))
        if not self.prices.add_pieces(place.place, each.layout.num_microbatches, ends, self.deadline, self.best_s):
            return False
        self._price_layout(place, each, each.base)
        return True

    def _bound_jointly(self, place: OpenPlace, each: Open) -> bool:
        """Bound the stages of the cuts that hold a bound down, each with one plan for all of its phases; False where that was done before or cannot be."""
        layout, costs = each.layout, self._own_costs(place, each)
        cuts = self._cuts(each, costs) if has_given_cuts(layout) else each.cuts
        if cuts is None or cuts in each.joint_s or layout.place.num_stages == 1:
            return False
        try:
            each.joint_s[cuts] = self.solver.bound(layout, cuts, len(costs.step_s), self.best_s, self.deadline)
        except (ConstraintError, MicrobatchError):  # what solving it would say
            each.joint_s[cuts] = 0.0
        self._price_layout(place, each, each.base)
        return True

    def _try_cuts(self, place: OpenPlace, each: Open) -> bool:
        """Solve a layout at the cuts that hold its bound down: with ample memory they take about that. False where they were tried before."""
        if each.cuts is None or each.tried == each.cuts or self.num_solved >= _MOST_MORE:
            return False
        each.tried = each.cuts
        self._solve(place, each, each.cuts)
        return True

    def _solve(self, place: OpenPlace, each: Open, cuts: tuple[int, ...] | None = None) -> None:
        """Solve a layout stage by stage, cut where that is best or as told; take it if it is the best so far."""
        began = time.monotonic()
        self.num_solved += 1
        each.solved = True
        try:
            costs = self._own_costs(place, each)
            staged = self.solver.solve(each.layout, costs, self.deadline - time.monotonic(), cuts, each.searched)
        except (ConstraintError, MicrobatchError) as error:
            staged = Unsolved(str(error), proven=True)
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        if isinstance(staged, Unsolved):
            each.gone, each.failed = staged.proven, not staged.proven
            self.report(f"{print_layout(each.layout)}: {staged.why}")
            self._prune(print_layout(each.layout), staged.why)
            return
        if each.failed:  # before, when it had less time
            self.pruned = {row: None for row in self.pruned if row.what != print_layout(each.layout)}
        if each.layout.place.num_stages == 1:
            each.any_s = max(each.any_s, staged.stages[0].found.bound_s)
        self.report(f"{print_layout(each.layout)}: {staged.step_s:.4g} s, guessed {each.guess_s:.4g} s, at least {each.bound_s:.4g} s")
        each.guess_s, each.tried = staged.step_s, staged.cuts
        if staged.step_s < self.best_s:
            self.best, self.best_s = staged, staged.step_s

    def _is_beaten(self, each: Open) -> bool:
        return each.bound_s >= self.best_s * (1 - _GAP)

    def _is_over(self, place: OpenPlace) -> bool:
        return all(each.gone or self._is_beaten(each) for each in place.rows)

    def _prune(self, what: str, why: str) -> None:
        self.pruned[Pruned(what, why)] = None
