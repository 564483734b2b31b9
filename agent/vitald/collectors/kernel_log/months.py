"""
The names of months as `strftime("%b")` writes them in a localised journal, syslog or dmesg.

Source: localedata of glibc 2.36 (abmon, ab_alt_mon), of 48 locales. Some names are in none of the
lists, because they are different months in two languages: "lip", "lis" and "srp" in Polish, Czech
and Croatian. A date with such a name is none.
"""

from __future__ import annotations

import re

# What may stand where a month does: a name, a number with its unit (Chinese, Japanese, Korean), a
# number after its unit (Vietnamese). Catalan has a preposition before it.
MONTH = r"(?:\d{1,2}[^\W\d]|[Tt]hg \d{1,2}|(?:[Dd]e |[Dd][\u2019'])?[^\s\d\[\]():;,=/<>]{2,12})"
# Day of the week
DAY = r"(?:[^\s\d\[\]():;,=/<>]{1,8}|T\d)"
_PREPOSITION = re.compile(r"de |d[\u2019']")
_NUMBER = re.compile(r"\d{1,2}")
_NAMES = (
    "jan jän janv ene gen tammi jaan saus sty led sij јан ian яну янв січ сту ιαν oca xan urt "
    "ينا يناير ינו ژانویه जन॰ ม.ค იან հնվ қаң জানু ஜன جنوری",
    "feb févr fev helmi veebr vas lut úno febr velj феб фев лют φεβ şub ots فبر فبراير פבר "
    "فوریه फ़र॰ ก.พ თებ փտր ақп ফেব பிப் فروری",
    "mär mars mar mrt maalis märts kov bře márc ožu мар бер сак μαρ μάρ març مار مارس מרץ "
    "मार्च มี.ค მარ մար нау মার্চ மார் مارچ",
    "apr avril abr april huhti bal kwi dub ápr tra апр кві кра απρ nis api أبر أبريل אפר "
    "آوریل अप्रैल เม.ย აპრ ապր сәу এপ্রিল ஏப் اپریل",
    "mai may mag mei maj touko geg kvě máj svi мај май мая тра μαΐ μάι maig ماي مايو מאי مه "
    "मई พ.ค maí მაი մայ мам মে மே مئی",
    "jun juin giu juni kesä juuni jūn birž cze čen jún јун iun юни июн чер чэр ιουν ιούν haz "
    "juny xuñ eka يون يونيو יונ ژوئن जून มิ.ย ივნ հնս мау জুন ஜூன் جون",
    "jul juil lug juli heinä juuli jūl liep čec júl јул iul юли июл лип ліп ιουλ ιούλ tem xul "
    "uzt يول يوليو יול ژوئیه जुल॰ ก.ค ივლ հլս шіл জুলাই ஜூலை جولائی",
    "aug août ago elo rugp sie avg kol авг сер жні αυγ αύγ ağu ag abu agu أغس أغسطس אוג اوت "
    "अग॰ ส.ค ágú აგვ օգս там আগস্ট ஆக اگست",
    "sep sept set syys rugs wrz zář szept ruj сеп сен вер σεπ eyl ira سبت سبتمبر ספט سپتامبر "
    "सित॰ ก.ย სექ սեպ қыр সেপ্টেম্বর செப் ستمبر",
    "okt oct out ott loka spal paź říj окт жов кас οκτ eki urr أكت أكتوبر אוק اكتبر अक्तू॰ "
    "ต.ค ოქტ հոկ қаз অক্টোবর அக் اکتوبر",
    "nov marras lapkr stu нов ное ноя лис ліс νοε νοέ kas aza نوف نوفمبر נוב نوامبر नव॰ พ.ย "
    "nóv ნოე նմբ қар নভেম্বর நவ نومبر",
    "dez déc dic dec des joulu dets gruod gru pro дец дек гру сне δεκ ara abe ديس ديسمبر דצמ "
    "دسامبر दिस॰ ธ.ค დეკ դեկ жел ডিসেম্বর டிச دسمبر",
)
_MONTHS = {name: number for number, names in enumerate(_NAMES, 1) for name in names.split()}


def parse_month(text: str) -> int | None:
    """1 to 12; None if the text names no month, or different ones in different languages."""
    name = _PREPOSITION.sub("", text.casefold().rstrip("."), count=1)
    if (number := _NUMBER.search(name)) is None:
        return _MONTHS.get(name)
    return int(number[0]) if 1 <= int(number[0]) <= 12 else None
