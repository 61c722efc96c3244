"""Sentences for meetings, help and obstacles: the part of sentences.py that all wants share."""


def table(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


ENCOUNTERS: dict[str, list[str]] = {
    "meet": table("""
        {A} [meet] {other.a} named {B} {where}.
        There {A} [meet] {B}, {other.a}.
        {where} [sit] {other.a} whose name [be] {B}.
        {other.a} called {B} [come] along.
        {A} [see] {other.a} {where}, and {B.her} name [be] {B}.
        "Hello, I am {B}," [say] {other.a} {where}.
        "Who (are you|goes there|is coming)?" [ask] {other.a} {where}. The stranger's name [be] {B}.
        "(Good day|Good morning|Hello there|Greetings)!" [call] {B}, {other.a} {where}.
    """),
    "shy": table("""
        {A} [be] shy and [look] at the ground.
        {A} [speak] very softly.
        {A} [hide] behind a leaf for a moment.
        For a while {A} [do] not dare to speak.
    """),
    "surly": table("""
        {A} [do] not smile.
        {A} [be] not in a good mood that day.
        {A} [look] {B} up and down.
        "What do you want?" [grumble] {A}.
        "I have little time," [say] {A}.
    """),
    "too_proud": table("""
        {A} [do] not want any help.
        "I need no help!" [say] {A}.
        {A} [think] that {A.she} [can] do it alone.
        "I can do this by myself," [say] {A}.
    """),
    "alone_fails": table("""
        {A} [try] and [try], and nothing [come] of it.
        {A} [try] it three times without luck.
        {A} soon [see] that it [do] not work.
        it [be] no use.
    """),
    "ask": table("""
        {A} [ask] {B} for help.
        {A} [tell] {B} (everything|the whole story|all about it) and [ask] for help.
        "(Will you|Could you|Would you) (help me|lend me a hand|stand by me), please?" [ask] {A}.
        "{B}, can you help me?" [ask] {A}.
        "I need your help," [say] {A} to {B}.
        {A} [beg] {B} to help.
        {A} politely [ask] {B} for a little help.
    """),
    "condition": table("""
        {A} [will] only help if {B} [do] some work: {B} [have] to {duty}.
        {A} [want] something for it: first {B} [have] to {duty}.
        "First you must {duty}," [say] {A}.
        "I will help you if you {duty}," [answer] {A}.
        "Nothing is free," [say] {A}. "Can you {duty}?"
        {A} [tell] {B} to {duty} first.
    """),
    "do_duty": table("""
        {A} [do] all that {B} [have] asked.
        {A} [go] to {duty}, and {B} [watch].
        {A} [set] to work (at once|gladly|with a sigh), for it [be] (fair|only right).
        {A} [work] until it [be] done.
        It [take] (an hour|some time|all morning) to {duty}, and {A} [do] not (complain|stop|mind).
    """),
    "refuse_duty": table("""
        {A} [be] too lazy for that and [go] away.
        {A} [yawn] and [do] nothing, so {B} [leave].
        "That is too much work," [say] {A}, and {B} [leave].
    """),
    "agree": table("""
        {A} [be] glad to help.
        {A} [nod].
        {A} [agree] to help {B}.
        "(Of course|Surely|Yes,) I will (help you|do that|try)," [say] {A}.
        "(Yes, let me|Well, let us) see," [say] {A} with a (smile|nod|wink).
        "I (will|can) help you (gladly|with that|if you like)," [answer] {A}.
        {A} [think] (for a moment|about it|a little) and then [say] yes.
    """),
    "see_at": table("""
        {A} [see] {t} {spot}.
        {A} [find] {t} {spot}.
        {A} [discover] {t} {spot}.
        {spot} [lie] {t}.
        {A} [look] (up and down|all around|twice) and [see] {t} {spot}.
        "There it is!" [cry] {A}. {t} [be] {spot}.
    """),
    "manage": table("""
        {A} {how} and [get] {t}.
        That [be] easy for {A}, who {how} and [come] back with {t}.
        Without any help {A} {how} and [bring] {t} back.
        {A} {how} and [take] {t}.
        "I can do that," [say] {A}. {A.she} {how} and [get] {t}.
    """),
    "afraid": table("""
        {A} [be] afraid of {fear}.
        {A} [fear] nothing as much as {fear}.
        {A.her} legs [shake+], for {A} [be] afraid of {fear}.
        "I am afraid of {fear}," [whisper] {A}.
        {A} [stop], because {A.she} [be] afraid of {fear}.
    """),
    "courage": table("""
        {A} [tell] {B} to be brave.
        {A} [take] {B} along and [talk] to {B.him} gently.
        "Do not be afraid, I am with you," [say] {A}.
        "Look at me and take one step at a time," [say] {A}.
        {A} [promise] to stay close to {B}.
        {A} [stay] beside {B} the whole time.
    """),
    "dare": table("""
        {A} [take] a deep breath and [get] {t}.
        {A} [go] on with a beating heart and [come] back with {t}.
        {A} [close] {A.her} eyes for a moment, and then {A.she} [get] {t}.
        Step by step {A} [go] on, with {B} close by, and [get] {t}.
    """),
    "dare_alone": table("""
        {A} [take] a deep breath and [get] {t}.
        {A} [go] on with a beating heart and [come] back with {t}.
        {A} [count] to three and [get] {t}.
    """),
    "think_of": table("""
        {A} [think] of {B} and [be] not so afraid any more.
        {A} [want] {B} to be happy more than anything.
        "For {B} I will do it," [say] {A}.
    """),
    "cannot": table("""
        {A} [can] not {why}.
        {A} [know] that {A.she} [can] not {why}.
        "Oh no, I cannot {why}," [say] {A}.
        Sadly {A} [can] not {why}.
        {A} [try] and [see] that {A.she} [can] not {why}.
    """),
    "think": table("""
        {A} [think] hard and [remember] {tool.a} in the shed.
        {A} [have] an idea: {tool.a} [will] help.
        "I know! I need {tool.a}," [say] {A}.
        {A} [sit] down to think, and then {A.she} [look] for {tool.a}.
    """),
    "use_tool": table("""
        {A} [fetch] {tool.a} and [get] {t} with it.
        With {tool.the} {A} [get] {t} quite easily.
        {A} [use] {tool.the}, and it [work]: {A.she} [have] {t} in {A.her} hands.
        {A} [come] back with {tool.a} and [get] {t}.
    """),
    "together": table("""
        {A} and {B} [take+] {tool.a} and [try+] it together.
        {A} and {B} [work+] side by side with {tool.a}.
        "Let us try it (together|side by side|as a pair)," [say] {B}, and {A} [bring] {tool.a}.
        {B} [can] not do it alone either, so {A} and {B} [use+] {tool.a}.
    """),
    "got_together": table("""
        {A} and {B} [have+] {t}.
        {A} and {B} [get+] {t} after a long time.
        {A} [hold] {t} in {A.her} hands, thanks to {B}.
    """),
    "gone": table("""
        {t} {where}.
        something [go] wrong: {t} {where}.
        {t} {where}, and nobody [can] do anything.
    """),
    "helper_does": table("""
        {A} {how} and [get] {t} for {B}.
        {A} {how}, and soon {A.she} [bring] {t} to {B}.
        It [be] easy for {A}, who {how} and [come] back with {t}.
        {B} [wait] below while {A} {how} and [get] {t}.
        {A} {how} and [give] {t} to {B}.
    """),
    "thank": table("""
        {A} [thank] {B} (again and again|warmly|three times|very much).
        {A} [thank] {B} and [give] {B.him} {food.a}.
        "Thank you, {B}!" [say] {A}.
        To thank {B}, {A} [share] {food.a} with {B.him}.
        "I will (never|not) forget (this|it|your kindness)," [say] {A} to {B}.
        {A} and {B} [shake+] hands, and then they [eat+] {food.a} together.
    """),
    "search": table("""
        {A} [look] {spot}, but {t} [be] not there.
        {A} [look] for {t} {spot}, but [find] nothing.
        {A} [search] {spot}, and {t} [be] not there.
        "Where is it?" [ask] {A}, who [look] {spot} and [find] nothing.
    """),
    "search_on": table("""
        {A.she} [look] {spot} and {spot2}, too.
        {A} [search] {spot} and even {spot2}.
        it [be] neither {spot} nor {spot2}.
        {spot} [be] only dust, and {spot2} [be] nothing at all.
    """),
    "ask_where": table("""
        {A} [ask] {B} about {t}.
        "Have you seen {t.my}?" [ask] {A}.
        "I (am looking|have been looking) for {t.my}," [say] {A} to {B}.
    """),
    "tell_where": table("""
        {A} [have] seen {t} and [show] {B} the way.
        {A} [tell] {B} where to look.
        "Yes, I saw it (this morning|yesterday|on my walk). (Come with me|Follow me)," [say] {A}.
        "I (think|believe) I know where it (is|lies|may be)," [say] {A}.
    """),
}
