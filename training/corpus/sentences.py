"""All sentences that a teller can use for an event. The parser reads the same table backwards.

`{A}` and `{B}` are the acting and the other character; `{A.her}`, `{A.she}`, `{A.him}` their pronouns. `{t}`
is a thing with its definite article, `{t.a}` with the indefinite one, `{t.bare}` without. `[go]` is a verb in
the teller's tense, `[go+]` its plural, and `(at once|soon)` a choice of wordings. A sentence that starts with
a quotation mark is for tellers who prefer dialogue.
"""

from encounters import ENCOUNTERS, table

INTRO = table("""
    {the place} [be] the home of {hero.a} named {A}.
    There once [be] {hero.a} named {A}, who [live] {in place}.
    {A} [be] {hero.a} who [live] {in place}.
    {in place} [live] {hero.a}, and {A.her} name [be] {A}.
    Once upon a time, {hero.a} called {A} [live] {in place}.
    This is the story of {A}, {hero.a} from {the place}.
    {A}, {hero.a}, [live] {in place}.
    {in place} there [be] {hero.a} whose name [be] {A}.
    {hero.a} named {A} [have] a home {in place}.
    Everyone {in place} [know] {A}, {hero.a}.
    {in place}, (not far from the road|behind a hedge|near a pear tree|in a hut), [live] {A}, {hero.a}.
    Do you know {A}? {A.she} [be] {hero.a}, and {A.she} [live] {in place}.
    Long ago, {hero.a} named {A} [live] {in place}.
    {A} [be] the name of {hero.a} who [live] {in place}.
    Listen to the tale of {A}, {hero.a} who [live] {in place}.
    Not long ago {hero.a} [live] {in place}, and {A.her} friends called {A.him} {A}.
""")

SCENE = table("""
    It [be] {season}, and {scene}.
    It [be] {weather.a} day in {season}.
    It [be] {weather.a} {season} day, and {scene}.
    It [be] a time of {weather} (days|hours|weeks) in {season}, and {scene}.
    In {season}, when {scene}, (this|our story|something) [happen].
    {season} [be] here: {scene}.
    The {season} [be] {weather} that year.
    All this [happen] in {season}, when {scene}.
    That {season}, {scene}.
""")

HABIT = table("""
    {A} [like] to {hobby}.
    (Every morning|In the evenings|On Sundays|Now and then|After lunch) {A} [like] to {hobby}.
    {A} [love] to {hobby} and to {hobby2}.
    Most of all {A} [like] to {hobby}.
    When (the work|the day|breakfast|the meal) [be] (done|over), {A} [like] to {hobby}.
    Nobody [can] {hobby} as well as {A}.
""")

EVENTS: dict[str, list[str]] = ENCOUNTERS | {
    "own": table("""
        {A} [have] {t.a} and [take] it everywhere.
        {A} [own] {t.a}, and it [be] {A.her} greatest treasure.
        The dearest thing that {A} [have] [be] {t.a}.
        {A} [have] {t.a} from {A.her} grandmother.
        {A} [be] proud of {A.her} {t.bare}.
    """),
    "lost": table("""
        {t} [be] gone.
        {A} [lose] {t}.
        {A} [can] not find {t} any more.
        {A} [wake] up and {t} [be] gone.
        {t} [be] not in its place.
    """),
    "reason": table("""
        {reason}.
        Perhaps {reason}.
        {A.she} [do] not know it, but {reason}.
    """),
    "want": table("""
        {A} [want] {want}.
        {A} [want] {want} more than anything.
        {A.her} greatest wish [be] {want}.
        {A} [wish] {want}.
        "I want {want}," [say] {A}.
        "How I would like {want}!" [sigh] {A}.
        All that {A} [want] [be] {want}.
    """),
    "hungry": table("""
        {A} [be] very hungry.
        {A} [wake] up hungry, and the cupboard [be] empty.
        {A.her} stomach [growl], for {A} [be] hungry.
        {A} [have] not eaten since the day before.
    """),
    "walk": table("""
        {A} [walk] {to place}.
        {A} [go] {to place} all alone.
        {A} [wander] {to place} and [look] around.
        {A} [set] out and [come] {to place}.
        The road [lead] {A} {to place}.
    """),
    "incident": table("""
        On the way {A} {incident}.
        {A} {incident} and [go] on.
        {A} {incident}.
        On a narrow path {A} {incident}.
        It [be] a long way, and {A} {incident}.
    """),
    "carry": table("""
        {A} [carry] {t.a}, as always.
        In {A.her} bag {A} [have] {t.a}.
        {A} never [go] (anywhere|out|far|on a walk) without {A.her} {t.bare}.
        {A} [hold] {A.her} {t.bare} tightly.
        {A.she} [take] {A.her} {t.bare} along (for luck|as well|once more).
    """),
    "never_seen": table("""
        {A} [have] never seen the {far}.
        {A} only [know] the {far} from stories.
        Travellers [talk+] of the {far}, and {A} [have] never been there.
        An old song [tell] of the {far}, and {A} [know] every verse.
    """),
    "pack": table("""
        {A} [put] {food.a} into a bag and [take] {t.a} along.
        {A} [pack] {food.a} and {t.a}.
        With {food.a} and {t.a} {A} [be] ready to go.
    """),
    "set_out": table("""
        {A} [set] out for the {far}.
        {A} [leave] home before the sun [be] up.
        {A} [start] on the long way to the {far}.
        {A} [say] goodbye and [walk] away.
    """),
    "scene_way": table("""
        Along the way {scene}.
        {scene}, and {A} [be] happy.
        {A} [see] that {scene}.
    """),
    "barrier": table("""
        {barrier} [be] in the way.
        {barrier} [block] the road.
        {A} [come] to {barrier}.
        the path [end] at {barrier}.
    """),
    "pass_self": table("""
        {A} [be] able to pass {barrier.the} without help.
        That [be] no trouble for {A}, who [pass] {barrier.the} in no time.
        {A} [get] past {barrier.the} all alone.
        "This is easy for me," [say] {A}, and {A.she} [pass] {barrier.the}.
    """),
    "pass_both": table("""
        {A} and {B} [pass+] {barrier.the} side by side.
        {A} [get] past {barrier.the}, with {B} close by.
        {A} [take] heart and [pass] {barrier.the} with {B}.
    """),
    "turn": table("""
        {A} [can] not get past {barrier.the}.
        {A} [sit] down, for {A.she} [do] not know how to pass {barrier.the}.
        "How can I get past this?" [ask] {A}, who [can] not pass {barrier.the}.
    """),
    "show_way": table("""
        {A} [show] {B} a safe way around {barrier.the}.
        {A} [know] a secret path and [lead] {B} past {barrier.the}.
        {A} [help] {B} past {barrier.the}.
        "Follow me," [say] {A}, and soon {barrier.the} [be] behind them.
    """),
    "alone": table("""
        {A} [be] often alone.
        Day after day {A} [play] alone.
        Nobody ever [come] to visit {A}.
        {A} [have] nobody to talk to.
        {A} [eat] alone, [walk] alone and [laugh] alone.
    """),
    "b_lost": table("""
        {A} [be] sad, because {A.her} {t.bare} [be] gone.
        {A} [cry], for {A.she} [can] not find {A.her} {t.bare}.
        "I have lost my {t.bare}," [sob] {A}.
        {A} [have] lost {t.a} and [look] very sad.
    """),
    "look_both": table("""
        {A} and {B} [look+] for {t} together.
        {A} [help] {B} to look for {t}.
        "Let us look for it," [say] {A}, and {A} and {B} [begin+] to search.
    """),
    "found_at": table("""
        {A} [find] {t} {spot}.
        {t} [be] {spot}.
        {spot} {A} [find] {t}.
        "Here it is!" [call] {A}, for {t} [be] {spot}.
    """),
    "b_hungry": table("""
        {A} [be] hungry and [have] nothing to eat.
        {A} [look] thin and hungry.
        "I have not eaten since yesterday," [say] {A}.
        {A} [hold] an empty bowl and [sigh].
    """),
    "share": table("""
        {A} [give] {B} half of {A.her} food: {food.a}.
        {A} [share] {food.a} with {B}.
        "Please take this," [say] {A}, and {B} [eat] {food.a}.
        {A} [have] {food.a} and [cut] it in two.
    """),
    "offer_play": table("""
        {A} [ask] {B} to play with {t}.
        "Shall we play with {t.my}?" [ask] {A}.
        {A} [show] {B} {t} and [ask] {B.him} to play.
    """),
    "accept_play": table("""
        {A} [look] at {t} for a long time.
        {A} [come] a little closer to look at {t}.
        {A} [touch] {t} and [think] about it.
    """),
    "still_no": table("""
        {A} [do] not want to play with anyone and [go] away.
        {A} [shake] {A.her} head and [walk] on.
        "I would rather be alone," [say] {A}, who then [go] home.
    """),
    "needs": table("""
        For that {A} [need] {first} and {second}.
        One [need] {first} and {second} for {dish.a}, and {A} [have] neither.
        "I need {first} and {second}," [say] {A}.
        {A} [read] in a book that it [take] {first} and {second}.
    """),
    "fetch": table("""
        {A} [get] {first} {in place}.
        {A} [go] {to place} and [come] back with {first}.
        {A} [find] {first} {in place}.
    """),
    "lacks": table("""
        {A} [have] no {second.bare} at all.
        nobody [sell] {second.bare} that day.
        It [be] hard to find {second}.
        {A} [look] for {second} in vain.
    """),
    "b_has": table("""
        {A} [have] {second} at home.
        {A} [have] {second} to spare.
        {A} [know] where to get {second}.
    """),
    "give": table("""
        {A} [give] {B} {t}.
        {A} [bring] {t} to {B}.
        "Take {t}," [say] {A} to {B}.
        {A} [go] home and [come] back with {t} for {B}.
    """),
    "work": table("""
        {A} and {B} [work+] all afternoon.
        {A} [begin] at once, and {B} [help] a little.
        It [be] hard work, but {A} [do] not give up.
        {A} [roll] up {A.her} sleeves while {B} [sing].
    """),
    "watch_skill": table("""
        {in place} someone [show] how to {skill}, and {A} [watch].
        {A} [see] a stranger {skill} {in place}.
        Every child {in place} [can] {skill}, but {A} [can] not.
    """),
    "try_skill": table("""
        {A} [try] to {skill}.
        {A} [go] behind the house and [try] to {skill}.
        {A} [close] {A.her} door and [try] to {skill}.
    """),
    "fail_skill": table("""
        {how}.
        {how}, and {A} [fall] over.
        {how}, and someone [laugh].
    """),
    "teach": table("""
        {A} [show] {B} how to {skill}.
        {A} [teach] {B} slowly and with patience.
        "(Watch me|Look here|Look closely) and do (the same|as I do)," [say] {A} to {B}.
        {A} [know] well how to {skill} and [teach] {B}.
    """),
    "practise": table("""
        {A} [practise] for {days}.
        {A} [practise] for {days}, and {B} [help].
        {A} [make] (many|some|a lot of) mistakes, but after {days} there [be+] (fewer|hardly any).
    """),
    "stop_practice": table("""
        {A} [get] tired of it and [stop].
        {A} [be] too lazy to go on.
        {A} [stay] in bed the next morning.
    """),
    "tired": table("""
        {A} [be] very tired.
        {A} [come] home late and [fall] into bed.
        {A} [can] hardly keep {A.her} eyes open.
        {A} [yawn] and [yawn].
    """),
    "noise": table("""
        there [be] a terrible noise outside.
        something [be] much too loud.
        a loud noise [wake] {A} again and again.
        outside the window something [make] a lot of noise.
    """),
    "go_see": table("""
        {A} [get] up, [take] {A.her} {t.bare} and [go] outside.
        {A} [put] {A.her} {t.bare} aside and [look] out of the door.
        {A} [go] (to see|to find out) what it [be], with {A.her} {t.bare} in one hand.
    """),
    "makes_noise": table("""
        {A} {noise}.
        It [be] {A} who {noise}.
        {A} {noise} and [do] not hear anything else.
    """),
    "ask_quiet": table("""
        {A} [ask] {B} to be quiet.
        "(Please|Please, please) be quiet, I want to (sleep|rest|go to bed)," [say] {A}.
        {A} [beg] {B} to stop.
        "Could you do that tomorrow?" [ask] {A}.
    """),
    "stop_noise": table("""
        {A} [stop] (at once|in surprise|right away) and [say] sorry.
        {A} [see] how late it [be] and [stop].
        "(I am sorry|Oh, forgive me|Excuse me), I will (stop|be quiet)," [say] {A}.
    """),
    "not_quiet": table("""
        {A} [do] not stop.
        "I am not tired," [say] {A}, who [go] on.
        {A} only [laugh] and [go] on.
    """),
    "bed_away": table("""
        {A} [carry] {A.her} pillow away and [lie] down {spot}.
        {A} [try] to sleep {spot}.
        {A} [lie] down {spot} with wool in {A.her} ears.
    """),
    "sorry": table("""
        {A} [feel] sorry for {B} and [be] quiet.
        {A} [see] how tired {B} [be] and [stop].
        "You look so tired. I will stop," [say] {A}.
    """),
    "storm": table("""
        {storm} [begin] to fall.
        The sky [turn] black, and heavy {storm} [fall].
        A cold wind [bring] {storm}, and {A} [shiver].
        {A} [be] caught by {storm} and wind.
    """),
    "try_shelter": table("""
        {A} [hide] under {tree}, but it [do] not help.
        {A} [creep] behind {tree}, but the wind [be] everywhere.
        {A} [look] for a dry place near {tree} and [find] none.
    """),
    "light": table("""
        {A} [see] a light in a small house.
        {A} [see] smoke above a little house.
        a lamp [shine] through the trees.
    """),
    "knock": table("""
        {A} [knock] on the door.
        {A} [run] to the house and [knock].
        "Is anyone at home?" [call] {A} at the door.
    """),
    "opens": table("""
        {self.a} named {A} [open] the door.
        The door [open], and there [stand] {A}, {self.a}.
        It [be] the house of {self.a} whose name [be] {A}.
        "I am {A}," [say] {self.a} at the door.
    """),
    "fire": table("""
        {A} [sit] by the fire and [get] {food} from {B}.
        {B} [give] {A} {food} and a chair by the stove.
        There [be] a fire in the stove, and {A} and {B} [have+] {food}.
    """),
    "friends": table("""
        {A} [have] a good friend, {other.a} named {B}.
        {A.her} best friend [be] {B}, {other.a}.
        {A} [like] {B}, {other.a} who [live] next door.
        {A} and {B}, {other.a}, [be+] old friends.
    """),
    "birthday": table("""
        {A} [have] a birthday.
        it [be] the birthday of {A}.
        {A} [turn] one year older.
    """),
    "want_give": table("""
        {A} [want] {want}.
        {A.her} plan [be] {want}.
        "I want {want}," [say] {A}.
        {A} [wish] {want}.
    """),
    "gift_lost": table("""
        {t} [be] gone.
        {A} [can] not find {t} anywhere.
        {A} [have] lost {t}.
    """),
    "hand_over": table("""
        {A} [run] to {B} with {t}.
        {A} [tie] a ribbon around {t} and [go] to {B}.
        "This is for you," [say] {A} to {B}.
        {A} [hurry] to the house of {B} with {t}.
    """),
    "end_find": table("""
        {A} [have] {t} again.
        {A} [be] back home with {t}.
        {t} [be] back with {A}.
        {A} [hold] {t} in {A.her} arms again.
    """),
    "end_eat": table("""
        {A} [eat] {t} to the last bite.
        {A} [eat] {t} and [be] hungry no more.
        {A} [sit] down in the shade and [eat] {t}.
        "How good this is!" [say] {A}, who [eat] {t}.
    """),
    "end_reach": table("""
        {A} [see] the {far} with {A.her} own eyes.
        {A} [stand] before the {far} and [can] not stop looking.
        There [be] the {far}, and {A} [see] it for the first time.
        {A} [reach] the {far}.
    """),
    "end_friend": table("""
        {A} and {B} [be+] friends.
        {A} [have] a friend, and {B} [have] one, too.
        {A} and {B} [become+] the best of friends.
        {A} [be] not (alone|lonely|sad) any more, (because|for|since) {B} [be] a friend.
    """),
    "end_make": table("""
        {t} [be] ready, and {A} [be] proud.
        {A} [finish] {t}, and it [be] a good one.
        {A} [have] {t.a} made by {A.her} own hands.
        {t} [be] done, and {A} [show] it to everyone.
    """),
    "end_skill": table("""
        {A} [can] {skill}.
        {A} [can] {skill} better than anyone {A.she} [know].
        {A} [have] learned to {skill}.
        everyone [see] that {A} [can] {skill}.
    """),
    "end_sleep": table("""
        it [be] quiet, and {A} [sleep] until noon.
        {A} [fall] asleep.
        {A} [sleep] deeply and [dream] of (the sea|sweet pears|white clouds|home).
        {A} [sleep] the whole night.
    """),
    "end_shelter": table("""
        {A} [be] {state} again.
        {A} [be] {state} and safe, while the storm [roar] outside.
        {A} [be] {state} from head to foot.
    """),
    "end_give": table("""
        {A} [give] {t} to {B}, who [be] very happy.
        {B} [get] {t} from {A} and [laugh] with joy.
        {B} [hold] {t} and [thank] {A}.
        {A} [give] {B} {t}, and the two [dance+].
    """),
    "end_missed": table("""
        {A} [have] to give up the wish {want}.
        {A} [go] home, and the wish {want} [do] not come true.
        {A} [do] not get what {A.she} [want]: {want}.
        {A.her} wish {want} [do] not come true that day.
    """),
    "console": table("""
        {A} [give] {B} {gift.a} to cheer {B.him} up.
        {A} [come] back and [bring] {B} {gift.a}.
        "Do not be sad," [say] {A}, who [give] {B} {gift.a}.
        {A} [bring] {gift.a} for {B}, and soon they [laugh+].
    """),
    "content": table("""
        {A} [say] to {A.her} own heart that tomorrow [be] another day.
        "I will try again," [say] {A}.
        {A} [look] at the stars and [be] not sad for long.
    """),
    "glad": table("""
        {A} [be] the happiest one (in the world|of all|far and wide).
        {A} [smile] all evening.
        {A} [sing] all the way (home|back|to the garden gate).
        {A} [jump] (for joy|up and down|into the air).
        {A.her} heart [be] light.
        "What a (good|fine|lucky|happy) day!" [say] {A}.
        {A} [laugh] and [clap] {A.her} hands.
        {A} never [forget] that day.
    """),
    "lesson": table("""
        So it is: {lesson}.
        From that (day|time|hour) on (everyone|all the neighbours|young and old) [know] that {lesson}.
        And (that|this|their tale) shows that {lesson}.
        It is (true|well known|clear|no secret) that {lesson}.
        As (old people|the wise|grandmothers|the elders) say, {lesson}.
        Remember: {lesson}.
    """),
}

MANNERS = ["softly", "quietly", "kindly", "at once", "in a low voice", "after a while", "slowly", "politely"]
"""Adverbs that are sometimes put after the speaker."""

LINKS: dict[str, list[str]] = {
    "": ["", "", "", "Then ", "Soon ", "A little later ", "After that "],
    "so": ["So ", "So ", "So ", "And so ", "Therefore "],
    "but": ["But "],
    "then": ["Then ", "After that ", "Now "],
    "first": ["First ", "In the morning ", "To begin with, "],
    "found": ["Soon ", "Then ", "A little later ", "There ", "Finally "],
    "at last": ["At last ", "In the end ", "Finally ", "After a long while "],
    "one day": [
        "One day ",
        "One morning ",
        "One {season} day ",
        "One evening ",
        "One {weather} day ",
        "Then, one day, ",
    ],
}
NO_LINK = {
    "want",
    "shy",
    "surly",
    "own",
    "never_seen",
    "alone",
    "reason",
    "carry",
    "lesson",
    "friends",
    "glad",
    "scene_way",
    "needs",
    "b_lost",
    "b_hungry",
    "b_has",
    "makes_noise",
    "storm",
    "ask_quiet",
    "content",
    "too_proud",
    "accept_play",
    "thank",
    "tell_where",
    "search_on",
    "watch_skill",
    "agree",
    "opens",
    "meet",
    "end_sleep",
    "birthday",
    "console",
    "cannot",
    "courage",
    "condition",
    "do_duty",
    "teach",
    "afraid",
    "incident",
    "want_give",
    "share",
}
"""Events without a time expression if no link connects them to the previous event."""
