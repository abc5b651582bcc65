"""Training methods: each is a frozen dataclass of hyper-parameters with its loss."""

from typing import get_args

from citrus.methods.adversarial import CWUAT, PGD, UAT, Shared, Standard
from citrus.methods.base import Batch, Boxes, Method, MethodLoss, box_losses
from citrus.methods.citrus import Citrus, CitrusSI
from citrus.methods.colt import Colt
from citrus.methods.crown_ibp import CrownIBP
from citrus.methods.expressive import CCIBP, MTLIBP, ExpIBP
from citrus.methods.ibp import IBP, SABR
from citrus.methods.taps import STAPS, TAPS

CertifiedMethod = IBP | SABR | Citrus | CitrusSI | MTLIBP | CCIBP | ExpIBP | TAPS | STAPS | CrownIBP
AnyMethod = Standard | PGD | UAT | CWUAT | Shared | Colt | CertifiedMethod
METHODS: dict[str, type[AnyMethod]] = {m.name: m for m in get_args(AnyMethod)}
