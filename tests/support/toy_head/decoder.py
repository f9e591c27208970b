from typing import Any

from specbench.decoding import Drafting, HeadDecoder
from specbench.decoding import HeadOptions as Options


class Decoder(HeadDecoder):
    METHOD = "toy"

    @staticmethod
    def prepare(options: Options, target: Any) -> Drafting:
        from support.toy_head.head import prepare  # torch

        return prepare(options, target)
