"""Training methods: each is a frozen dataclass of hyper-parameters with its loss."""

from typing import get_args

from citrus.methods.adversarial import PGD as PGD
from citrus.methods.adversarial import Shared as Shared
from citrus.methods.adversarial import Standard as Standard
from citrus.methods.base import Batch as Batch
from citrus.methods.base import Boxes as Boxes
from citrus.methods.base import Method as Method
from citrus.methods.base import MethodLoss as MethodLoss
from citrus.methods.base import box_losses as box_losses
from citrus.methods.citrus import Citrus as Citrus
from citrus.methods.citrus import CitrusSI as CitrusSI
from citrus.methods.colt import Colt as Colt
from citrus.methods.crown_ibp import CrownIBP as CrownIBP
from citrus.methods.expressive import CCIBP as CCIBP
from citrus.methods.expressive import MTLIBP as MTLIBP
from citrus.methods.expressive import ExpIBP as ExpIBP
from citrus.methods.ibp import IBP as IBP
from citrus.methods.ibp import SABR as SABR
from citrus.methods.taps import STAPS as STAPS
from citrus.methods.taps import TAPS as TAPS
from citrus.methods.uat import CWUAT as CWUAT
from citrus.methods.uat import UAT as UAT

CertifiedMethod = IBP | SABR | Citrus | CitrusSI | MTLIBP | CCIBP | ExpIBP | TAPS | STAPS | CrownIBP
AnyMethod = Standard | PGD | UAT | CWUAT | Shared | Colt | CertifiedMethod
METHODS: dict[str, type[AnyMethod]] = {m.name: m for m in get_args(AnyMethod)}
