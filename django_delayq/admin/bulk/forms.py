"""The forms that an operator fills in before a move."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from django_delayq.admin.bulk.moves import Change
from django_delayq.support.units import LONGEST_MS, to_ms


class RescheduleForm(forms.Form):
    """A new due time: each message later by a length of time, or all of them that long from now."""

    how = forms.ChoiceField(
        label=_("New due time"),
        choices=[("shift", _("each later than it is now, by")), ("reschedule", _("all of them from now, in"))],
        initial="shift",
        widget=forms.RadioSelect,
    )
    length = forms.CharField(
        label=_("Length of time"), initial="1h", max_length=40, help_text=_("Such as 90s, 30m, 1h, 2h30m or 7d.")
    )

    def clean_length(self) -> int:
        """Return the length of time in ms."""
        try:
            return to_ms(self.cleaned_data["length"], "length")
        except ValueError as error:
            raise forms.ValidationError(
                _("%(value)s is no length of time; write it like 90s, 30m, 1h, 2h30m or 7d, at most %(days)s days.")
                % {"value": self.cleaned_data["length"], "days": LONGEST_MS // 86_400_000}
            ) from error

    def change(self) -> Change:
        """Return the change that a valid form asks for."""
        asked: dict[str, Any] = self.cleaned_data
        if asked["how"] == "shift":
            return Change("shift", shift_ms=asked["length"])
        return Change("reschedule", delay_ms=asked["length"])


class PayloadForm(forms.Form):
    """New data for a message, as JSON."""

    payload = forms.CharField(
        label=_("Payload"),
        strip=False,
        widget=forms.Textarea(attrs={"class": "vLargeTextField", "rows": 20, "spellcheck": "false"}),
        help_text=_("JSON, as the handler is to receive it. It is checked against the handler's type."),
    )
