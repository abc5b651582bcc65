"""Training methods, one file each: a frozen dataclass of hyper-parameters and its loss."""

from citrus.methods.base import Batch as Batch
from citrus.methods.base import Boxes as Boxes
from citrus.methods.base import Method as Method
from citrus.methods.base import MethodLoss as MethodLoss
from citrus.methods.base import box_losses as box_losses
from citrus.methods.citrus import Citrus as Citrus
from citrus.methods.citrus_si import CitrusSI as CitrusSI
from citrus.methods.ibp import IBP as IBP
from citrus.methods.sabr import SABR as SABR
from citrus.methods.standard import Standard as Standard

AnyMethod = Standard | IBP | SABR | Citrus | CitrusSI
METHODS: dict[str, type[AnyMethod]] = {m.name: m for m in (Standard, IBP, SABR, Citrus, CitrusSI)}
