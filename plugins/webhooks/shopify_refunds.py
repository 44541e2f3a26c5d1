"""The amounts of Shopify's refunds, in the currency of the shop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from .payloads import objects, sum_of, text_of

__all__ = ["Refunded", "one_of"]


class Refunded:
    """The amounts of a refund in the currency of the shop. `goods` are what it takes from the net sales."""

    def __init__(self, refund: Mapping[str, Any]) -> None:
        transactions = objects(refund.get("transactions"))
        paid = [
            each
            for each in transactions
            if each.get("kind") == "refund" and each.get("status") in ("success", "pending")
        ]
        self.is_test = any(each.get("test") is True for each in transactions)
        self.lines = objects(refund.get("refund_line_items"))
        given = sum_of(each.get("amount") for each in paid)
        currencies = [each["currency"] for each in paid if each.get("currency")]
        shop = _currency_of_shop(refund)
        parts, total = _Parts.of(refund, None), given
        if shop is not None and any(each != shop for each in currencies):  # the customer paid in another currency
            parts, theirs = _Parts.of(refund, "shop_money"), _Parts.of(refund, "presentment_money")
            differs = {with_tax: abs(theirs.total(with_tax=with_tax) - given) for with_tax in (True, False)}
            total = parts.total(with_tax=differs[True] <= differs[False])
            currencies = [shop]
        self.currency = next(iter(currencies), None)
        self.total = total if paid else None
        self.tax, self.shipping = parts.tax, parts.shipping
        self.goods = total - parts.tax - parts.shipping - parts.duties if paid else parts.lines - parts.difference
        self.goods -= parts.others


class _Parts(NamedTuple):
    """The sums of a refund's parts. The money that was given back differs from that of its lines by `difference`."""

    lines: Decimal
    """With taxes if the prices of the shop have them."""
    others: Decimal
    """The part of `lines` that is no sale."""
    tax: Decimal
    shipping: Decimal
    duties: Decimal
    difference: Decimal
    """Negative if more was given back than the lines say."""

    @classmethod
    def of(cls, refund: Mapping[str, Any], money: str | None) -> _Parts:
        """The sums of `shop_money` or `presentment_money`. Without it those that have no currency."""

        def sum_in(values: Sequence[Mapping[str, Any]], name: str) -> Decimal:
            return sum_of(
                each.get(name) if money is None else one_of(each.get(f"{name}_set"), money) for each in values
            )

        lines = objects(refund.get("refund_line_items"))
        adjustments = objects(refund.get("order_adjustments"))
        of_shipping = [each for each in adjustments if each.get("kind") == "shipping_refund"]
        differences = [each for each in adjustments if each.get("kind") != "shipping_refund"]
        shipping, shipping_tax = abs(sum_in(of_shipping, "amount")), abs(sum_in(of_shipping, "tax_amount"))
        each_money = money or "shop_money"
        if not of_shipping:  # newer versions of the interface have lines of their own
            shipping_lines = objects(refund.get("refund_shipping_lines"))
            shipping = sum_of(one_of(each.get("subtotal_amount_set"), each_money) for each in shipping_lines)
            shipping_tax = sum_of(one_of(each.get("tax_amount_set"), each_money) for each in shipping_lines)
        return cls(
            lines=sum_in(lines, "subtotal"),
            others=sum_in([each for each in lines if not _is_sale(each.get("line_item"))], "subtotal"),
            tax=sum_in(lines, "total_tax") + shipping_tax - sum_in(differences, "tax_amount"),
            shipping=shipping,
            duties=sum_of(one_of(each.get("amount_set"), each_money) for each in objects(refund.get("duties"))),
            difference=sum_in(differences, "amount"),
        )

    def total(self, *, with_tax: bool) -> Decimal:
        """What was given back. `with_tax` says that the lines do not have the taxes."""
        return self.lines + (self.tax if with_tax else 0) + self.shipping + self.duties - self.difference


def _currency_of_shop(refund: Mapping[str, Any]) -> str | None:
    """The shop's currency, as far as a refund tells it."""
    places = {
        "refund_line_items": "subtotal_set", "order_adjustments": "amount_set", "duties": "amount_set",
        "refund_shipping_lines": "subtotal_amount_set", "transactions": "total_unsettled_set",
    }  # fmt: skip
    sets = [each.get(amount) for parts, amount in places.items() for each in objects(refund.get(parts))]
    return next((code for each in sets if (code := text_of(one_of(each, "shop_money", "currency_code")))), None)


def _is_sale(line: Any) -> bool:
    """Whether a line is sold goods: a gift card is sold when it pays, and a tip is no sale."""
    return not (isinstance(line, dict) and (line.get("gift_card") is True or line.get("tip_payment_gateway")))


def one_of(both: Any, money: str, member: str = "amount") -> Any:
    """A member of one of a pair: the amount in the shop's currency, or in the customer's. None if there is none."""
    one = both.get(money) if isinstance(both, dict) else None
    return one.get(member) if isinstance(one, dict) else None
