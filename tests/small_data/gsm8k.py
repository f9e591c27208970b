"""GSM8K in miniature: word problems of our own, with the marks that the published solutions have."""

from __future__ import annotations

Row = dict[str, str]


def _row(question: str, *solution: str) -> Row:
    *steps, answer = solution
    return {"question": question, "answer": "\n".join([*steps, f"#### {answer}"])}


TEST = [
    _row("Ann’s hens lay 16 eggs a day. She keeps 7 and sells the rest for $2 each. What does she earn in a day?",
         "She sells 16 - 7 = <<16-7=9>>9 eggs.", "That is 9 * 2 = $<<9*2=18>>18 a day.", "18"),
    _row("A port ships 1,450 crates of 1,000 nails each. How many nails is that?",
         "1,450 * 1,000 = <<1450*1000=1450000>>1,450,000 nails.", "1,450,000"),
    _row("Bo has 3 nets with 5 fish each.  How many fish has he?", "He has 3*5=<<3*5=15>>15 fish.", "15"),
    _row("A rope of 12 m is cut into 4 parts. How long is each?", "12/4=<<12/4=3>>3 m.", "3"),
    _row("Cy reads 20 pages a day, and 50% more on Sundays. How many on a Sunday?", "20*1.5=<<20*1.5=30>>30.", "30"),
    _row("A boat costs $2,500 and a sail $310. What do both cost?", "$2,500 + $310 = $<<2500+310=2810>>2,810", "2,810"),
    _row("Di walks 2 km, rests, and walks 7 km more. How far is that?", "2+7=<<2+7=9>>9 km", "9"),
    _row("Of 40 gulls a quarter leave. How many stay?", "10 leave.", "40 - 10 = <<40-10=30>>30 stay.", "30"),
    _row("Ed pays 3 times $4. How much?", "3 * 4 = $<<3*4=12>>12", "12"),
    _row("A tank of 100 l loses 5 l an hour for 6 hours. What is left?", "100 - 5*6 = <<100-5*6=70>>70 l.", "70"),
    _row("Flo is twice as old as Gus, who is 11. How old is Flo?", "2 * 11 = <<2*11=22>>22", "22"),
    _row("At -4 degrees it warms by 2. How cold is it?", "-4 + 2 = <<-4+2=-2>>-2", "-2"),
]  # fmt: skip
TRAIN = [
    _row(f"{name} has {have} {thing} and buys {more} more. How many {thing} has {name} now?",
         f"{name} has {have}+{more}=<<{have}+{more}={have + more}>>{have + more} {thing} now.", f"{have + more}")
    for name, have, more, thing in [
        ("Hal", 48, 24, "clips"), ("Ida", 5, 6, "pens"), ("Jo", 70, 7, "cards"), ("Kit", 11, 2, "cups"),
        ("Lou", 9, 90, "beads"), ("Max", 31, 4, "shells"), ("Nan", 8, 13, "plums"), ("Oda", 2, 2, "oars"),
    ]
]  # fmt: skip
