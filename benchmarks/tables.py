"""Figures into the tables of a README: medians of rounds, and how many times as long as by hand in the same round."""

from statistics import median

OPS = ("pause", "redeem")
SLOWER = {"fast": "", "slow": "slow disk: "}


def of(figures, **wanted):
    """Choose measurements, by round."""
    return {one["round"]: one for one in figures if all(one[name] == value for name, value in wanted.items())}


def middle(chosen, figure):
    """Take the median of a figure; None where nothing has it."""
    found = [one[figure] for one in chosen.values() if figure in one]
    return median(found) if found else None


def times(mine, base, figure):
    """Compare round by round; a rate is the better the higher, and all else the lower."""
    rounds = [number for number in mine.keys() & base.keys() if figure in mine[number] and figure in base[number]]
    both = [(mine[number][figure], base[number][figure]) for number in rounds]
    both = [pair[::-1] if figure == "rate" else pair for pair in both]
    return median(own / other for own, other in both) if both else None


def number(value):
    """Write a figure with as many digits as tell something."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


def table(head, rows):
    """Write a table of Markdown."""
    return "\n".join(["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)])


def compared(peers, figures, stages, figure):
    """A row a peer, a column a stage and operation: the figure, and in brackets how many times hand's."""
    rows = []
    for peer in peers:
        cells = []
        for disk, at_once in stages:
            for op in OPS:
                wanted = {"disk": disk, "at_once": at_once, "op": op}
                mine, base = of(figures, peer=peer.name, **wanted), of(figures, peer=peer.base, **wanted)
                ratio = times(mine, base, figure)
                brackets = f" ({number(ratio)})" if ratio and peer.name != peer.base else ""
                cells.append(number(middle(mine, figure)) + brackets)
        rows.append([peer.title, *cells])
    return table(["", *columns(stages)], rows)


def beside(ours, peers, figures, stages):
    """A row a peer of the same store: how many times as many of ours there are in the same rounds."""
    rows = []
    for peer in peers:
        own = ours[peer.base]
        if peer.name in (own, peer.base):
            continue
        cells = []
        for disk, at_once in stages:
            for op in OPS:
                wanted = {"disk": disk, "at_once": at_once, "op": op}
                cells.append(
                    number(times(of(figures, peer=peer.name, **wanted), of(figures, peer=own, **wanted), "rate"))
                )
        rows.append([peer.title, *cells])
    return table(["", *columns(stages)], rows)


def columns(stages):
    """Name a column for each operation of each stage."""
    return [f"{SLOWER[disk]}{op}, {at_once} at once" for disk, at_once in stages for op in OPS]


#: What an operation costs: the title of a column, the figure, and what to divide it by.
COSTS = (
    ("client CPU ms", "client_cpu", 1),
    ("server CPU ms", "server_cpu", 1),
    ("statements", "statements", 1),
    ("commits", "commits", 1),
    ("log, KB", "records", 1000),
    ("and whole pages, KB", "images", 1000),
)


def costs(peers, figures, disk, at_once):
    """A row a peer, a column a cost: of a pause, and of a redemption."""
    rows = []
    for peer in peers:
        chosen = [of(figures, peer=peer.name, disk=disk, at_once=at_once, op=op) for op in OPS]
        cells = []
        for _, figure, unit in COSTS:
            found = [middle(one, figure) for one in chosen]
            cells.append("" if None in found else " / ".join(number(value / unit) for value in found))
        rows.append([peer.title, *cells])
    return table(["a pause / a redemption", *[title for title, _, _ in COSTS]], rows)


def races(peers, raced, disk):
    """A row a peer: how long a race takes, and how it ends."""
    rows = []
    for peer in peers:
        mine, base = of(raced, peer=peer.name, disk=disk), of(raced, peer=peer.base, disk=disk)
        if not mine:
            continue
        ends = next(iter(mine.values()))["ends"]
        told = ", ".join(f"{count} {end}" for end, count in sorted(ends.items(), key=lambda item: item[1]))
        rows.append([peer.title, number(middle(mine, "ms")), number(times(mine, base, "ms")), told])
    return table(["", "ms to the last outcome", "times hand's", "outcomes"], rows)


def growth(peers, figures, sizes):
    """A row a peer, a column an operation and size: the rate, and how many times slower than at the first size."""
    head = [""] + [f"{op}, {size:,} stored" for op in OPS for size in sizes]
    rows = []
    for peer in peers:
        cells = []
        for op in OPS:
            first = of(figures, peer=peer.name, op=op, stored=sizes[0])
            for size in sizes:
                mine = of(figures, peer=peer.name, op=op, stored=size)
                brackets = "" if size == sizes[0] else f" ({times(mine, first, 'rate'):.2f})" if mine else ""
                cells.append(number(middle(mine, "rate")) + brackets)
        rows.append([peer.title, *cells])
    return table(head, rows)
