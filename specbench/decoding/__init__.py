"""Everything that authors of methods import: the decoder protocol, token trees, and building blocks for drafts."""

from typing import TYPE_CHECKING

from specbench.common.doors import door

if TYPE_CHECKING:
    from specbench.common import Options as Options
    from specbench.common import option as option
    from specbench.decoding.block_decoder import BlockDecoder as BlockDecoder
    from specbench.decoding.block_decoder import FillOptions as FillOptions
    from specbench.decoding.block_decoder import MaskedDecoder as MaskedDecoder
    from specbench.decoding.block_decoder import Prediction as Prediction
    from specbench.decoding.block_decoder import shift_of as shift_of
    from specbench.decoding.block_decoder import shift_option as shift_option
    from specbench.decoding.convergence import State as State
    from specbench.decoding.convergence import fast_forwarded as fast_forwarded
    from specbench.decoding.convergence import prefix as prefix
    from specbench.decoding.convergence import settled as settled
    from specbench.decoding.convergence import stationary as stationary
    from specbench.decoding.corpus import SEEN as SEEN
    from specbench.decoding.corpus import SEGMENT as SEGMENT
    from specbench.decoding.corpus import check_corpus as check_corpus
    from specbench.decoding.corpus import read_corpus as read_corpus
    from specbench.decoding.drafts import Branches as Branches
    from specbench.decoding.drafts import JacobiChain as JacobiChain
    from specbench.decoding.drafts import Kind as Kind
    from specbench.decoding.drafts import NgramIndex as NgramIndex
    from specbench.decoding.drafts import Noise as Noise
    from specbench.decoding.fill import Fill as Fill
    from specbench.decoding.fill import FillDecoder as FillDecoder
    from specbench.decoding.fill import FillResult as FillResult
    from specbench.decoding.head_decoder import Drafting as Drafting
    from specbench.decoding.head_decoder import HeadDecoder as HeadDecoder
    from specbench.decoding.head_decoder import HeadOptions as HeadOptions
    from specbench.decoding.head_decoder import check_head_name as check_head_name
    from specbench.decoding.head_decoder import shipped_head as shipped_head
    from specbench.decoding.limits import DRAFTED as DRAFTED
    from specbench.decoding.limits import STOP_MEASURES as STOP_MEASURES
    from specbench.decoding.limits import confidence_option as confidence_option
    from specbench.decoding.limits import confident as confident
    from specbench.decoding.limits import stop_option as stop_option
    from specbench.decoding.masked_text import above as above
    from specbench.decoding.masked_text import best_of as best_of
    from specbench.decoding.masked_text import even_shares as even_shares
    from specbench.decoding.pairs import MethodName as MethodName
    from specbench.decoding.pairs import fallback_option as fallback_option
    from specbench.decoding.pairs import pair_methods as pair_methods
    from specbench.decoding.pairs import paired_method as paired_method
    from specbench.decoding.pairs import retrieve_option as retrieve_option
    from specbench.decoding.protocol import Context as Context
    from specbench.decoding.protocol import Decoder as Decoder
    from specbench.decoding.protocol import Method as Method
    from specbench.decoding.protocol import Target as Target
    from specbench.decoding.tree import COMPUTED as COMPUTED
    from specbench.decoding.tree import FILLED as FILLED
    from specbench.decoding.tree import ORIGINS as ORIGINS
    from specbench.decoding.tree import BadTree as BadTree
    from specbench.decoding.tree import Branch as Branch
    from specbench.decoding.tree import Proposal as Proposal
    from specbench.decoding.tree import StepResult as StepResult
    from specbench.decoding.tree import TokenTree as TokenTree
    from specbench.decoding.tree import TypicalAcceptance as TypicalAcceptance
    from specbench.decoding.trees.builders import BUILDERS as BUILDERS
    from specbench.decoding.trees.builders import Knobs as Knobs
    from specbench.decoding.trees.marginals import Marginals as Marginals
    from specbench.decoding.trees.written import MC_SIM_7B_63 as MC_SIM_7B_63
    from specbench.decoding.trees.written import Node as Node
    from specbench.decoding.trees.written import TreeOption as TreeOption
    from specbench.decoding.trees.written import parse_nodes as parse_nodes
else:
    __getattr__, __dir__ = door(__name__)
