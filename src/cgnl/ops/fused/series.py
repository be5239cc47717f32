"""The Taylor series of a tile in registers, as ``ops.series`` has it for whole tensors.

``first`` is the lowest power with a coefficient, ``terms`` how many there are, ``gamma`` the envelope exp(-gamma x^2).
Coefficients lie one behind the other: coefficient + i is that of the power first + i.
"""

import triton
import triton.language as tl


@triton.jit
def expm1(x):
    """exp(x) - 1 for x <= 0, exact near zero."""
    small = x * (1 + x * (1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x / 5040))))))
    return tl.where(x > -0.35, small, tl.exp(x) - 1)


@triton.jit
def envelope(x, gamma: tl.constexpr):
    """exp(-gamma x^2). Near zero, where it matters most, the hardware's exp is off by more than a rounding."""
    e = x * x * -gamma
    return tl.where(e > -0.35, 1 + expm1(e), tl.exp(e))  # 1 would swallow what is small


@triton.jit
def value(x, coefficient, ok, first: tl.constexpr, terms: tl.constexpr, gamma: tl.constexpr):
    """exp(-gamma x^2) sum_p c_p x^p less c_0: what y is beside the bias of its sample and group."""
    lowest: tl.constexpr = first if first > 0 else 1
    total = x * 0
    for i in tl.static_range(first + terms - lowest):  # Horner's rule, from the highest power down
        total = total * x + tl.load(coefficient + (terms - 1 - i), mask=ok, other=0.0)
    for _ in tl.static_range(lowest):
        total = total * x
    if gamma > 0:
        total = total * envelope(x, gamma)
        if first == 0:
            total += tl.load(coefficient, mask=ok, other=0.0) * expm1(x * x * -gamma)
    return total


@triton.jit
def respond(theta, coefficient, ok, dtype: tl.constexpr, form):
    """y less c_0 as a product takes it, and the peak that it was divided by. For the dot kernel y is theta itself."""
    top = 1.0
    if form.dot:
        y = theta
    else:
        y = value(theta.to(tl.float32), coefficient, ok, form.first, form.terms, form.gamma)
        if form.rescale:
            top = tl.maximum(tl.max(tl.abs(y)), 1e-30)
            y /= top
    return y.to(dtype), top


@triton.jit
def slope(x, coefficient, ok, first: tl.constexpr, terms: tl.constexpr, gamma: tl.constexpr):
    """The derivative of ``value`` by x."""
    total = x * 0
    for i in tl.static_range(terms):
        if first + terms - 1 - i > 0:
            c = tl.load(coefficient + (terms - 1 - i), mask=ok, other=0.0)
            total = total * x + c * (first + terms - 1 - i)
    for _ in tl.static_range(first - 1 if first > 1 else 0):
        total = total * x
    if gamma > 0:
        whole = x * 0
        for i in tl.static_range(terms):
            whole = whole * x + tl.load(coefficient + (terms - 1 - i), mask=ok, other=0.0)
        for _ in tl.static_range(first + 1):
            whole = whole * x
        total = (total - whole * (2 * gamma)) * envelope(x, gamma)
    return total
