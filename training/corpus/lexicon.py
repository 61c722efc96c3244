"""The words of the demo model's world: its characters, things, places, and facts about them.

Tables only, including the consequences of an entry (who can swim, which spots are high), so that the
simulation and the parser use the same facts.
"""

import hashlib


def split(text: str) -> list[str]:
    """The entries of a comma-separated table."""
    return [" ".join(entry.split()) for entry in text.split(",") if entry.strip()]


def pairs(text: str) -> dict[str, str]:
    """The entries of a table in the format `left: right, left: right`."""
    return dict((part.strip() for part in entry.split(":")) for entry in split(text))


def held_out(*parts: str, share: int = 10) -> bool:
    """True if a combination is held out: one of `share`, by hash, independent of the seed."""
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") % share == 0


FLY, SWIM, CLIMB, DIG, STRONG, SMALL, NIGHT = "fly", "swim", "climb", "dig", "strong", "small", "night"

KINDS: dict[str, set[str]] = {
    "owl": {FLY, NIGHT},
    "crow": {FLY},
    "robin": {FLY, SMALL},
    "swallow": {FLY, SMALL},
    "bat": {FLY, NIGHT},
    "stork": {FLY},
    "magpie": {FLY},
    "pigeon": {FLY},
    "sparrow": {FLY, SMALL},
    "heron": {FLY},
    "duck": {FLY, SWIM},
    "goose": {FLY, SWIM},
    "swan": {FLY, SWIM},
    "frog": {SWIM, SMALL},
    "toad": {SWIM},
    "otter": {SWIM},
    "beaver": {SWIM},
    "turtle": {SWIM},
    "seal": {SWIM},
    "newt": {SWIM, SMALL},
    "squirrel": {CLIMB, SMALL},
    "cat": {CLIMB, NIGHT},
    "kitten": {CLIMB, SMALL},
    "marten": {CLIMB},
    "monkey": {CLIMB},
    "mole": {DIG, SMALL, NIGHT},
    "rabbit": {DIG},
    "badger": {DIG, STRONG, NIGHT},
    "fox": {DIG},
    "dog": {DIG, SWIM},
    "puppy": {DIG},
    "bear": {STRONG, CLIMB},
    "horse": {STRONG},
    "cow": {STRONG},
    "ox": {STRONG},
    "donkey": {STRONG},
    "elephant": {STRONG},
    "moose": {STRONG, SWIM},
    "mouse": {SMALL},
    "hedgehog": {SMALL, NIGHT},
    "snail": {SMALL},
    "beetle": {SMALL},
    "ant": {SMALL},
    "lizard": {SMALL, CLIMB},
    "hen": set(),
    "sheep": set(),
    "goat": {CLIMB},
    "pig": set(),
    "deer": set(),
    "hare": set(),
    "lamb": set(),
    "pony": {STRONG},
    "wolf": {STRONG},
    "boy": {CLIMB},
    "girl": {CLIMB},
    "farmer": {STRONG},
    "baker": set(),
    "miller": {STRONG},
    "gardener": {DIG},
    "shepherd": set(),
    "fisherman": {SWIM},
    "tailor": set(),
    "smith": {STRONG},
    "carpenter": {STRONG},
}
"""Kinds of characters, and their natural abilities."""

PEOPLE = set(
    split("boy, girl, farmer, baker, miller, gardener, shepherd, fisherman, tailor, smith, carpenter")
)

TRAITS = split("""shy, brave, curious, clever, kind, proud, lazy, patient, cheerful, grumpy, careful,
    forgetful, sleepy, gentle, stubborn, honest, greedy, quiet, lonely, busy""")

ALONE: dict[str, str] = {"girl": "f", "boy": "m", "cow": "f", "hen": "f", "ox": "m", "fisherman": "m"}
"""Kinds whose characters all have the same sex."""

GIRLS = split("""Mila, Tilda, Nora, Lily, Ada, Rosa, Ella, Hanna, Ivy, Mara, Clara, Dora, Elsa, Fanny,
    Greta, Ida, June, Kate, Lena, Molly, Nell, Olive, Polly, Ruby, Sally, Tess, Una, Vera, Wanda, Anna,
    Bella, Daisy, Emma, Flora, Gina, Hazel, Iris, Julia, Lucy, Maya, Nina, Pearl, Rita, Stella, Tina,
    Willow, Zoe, Alma, Betty, Carla, Edith, Freya, Helga, Jenny, Luna, Mina, Paula, Sonja, Thea, Viola""")
BOYS = split("""Otto, Bruno, Max, Tom, Ben, Finn, Hugo, Karl, Leo, Milo, Ned, Oscar, Paul, Rolf, Sam, Tim,
    Viktor, Will, Adam, Bert, Carl, Dan, Emil, Felix, Gus, Hans, Ivan, Jack, Kurt, Luke, Mark, Nico, Peter,
    Ralf, Simon, Toby, Udo, Walt, Alfred, Boris, Conrad, David, Eric, Fred, George, Harry, Jonas, Kaspar,
    Linus, Martin, Noah, Olaf, Philip, Rufus, Sven, Theo, Urs, Vincent, Willy, Zeno""")
SYLLABLES = split(
    "ba, be, bo, da, do, fi, ga, jo, ka, ki, la, le, lo, lu, ma, me, mi, mo, na, ni, no, pa, pi, ra, "
    "ri, ro, sa, si, so, ta, ti, to, va, vi, wa, za"
)

SEASONS = ["spring", "summer", "autumn", "winter"]
WEATHER = {
    "spring": split("rainy, windy, mild, bright, misty, fresh"),
    "summer": split("hot, sunny, dry, bright, warm, stormy"),
    "autumn": split("windy, foggy, rainy, golden, cool, grey"),
    "winter": split("snowy, frosty, icy, cold, clear, dark"),
}
SCENES = {
    "spring": split("""the snow [have] melted, the first flowers [be+] out, the birds [build+] their nests,
        young leaves [grow+] on every branch, the brook [be] full of water, the meadow [smell] of wet earth,
        lambs [jump+] in the fields, bees [hum+] around the cherry trees, a cuckoo [call] from far away"""),
    "summer": split("""the grass [be] tall and dry, the sun [stand] high in the sky, butterflies [dance+]
        over the clover, the strawberries [be+] ripe, the days [be+] long and warm, crickets [sing+] in the
        hay, children [swim+] in the bay, the wheat [be] yellow, not a cloud [be] to be seen"""),
    "autumn": split("""red leaves [fall+] from the trees, mushrooms [grow+] under the oaks, the apples [be+]
        ripe, the swallows [have+] flown south, fog [lie] over the fields, nuts [drop+] into the moss, the
        farmers [bring+] in the corn, the evenings [grow+] dark early, spiders [spin+] their webs in the
        hedges"""),
    "winter": split("""snow [lie] on all the roofs, the water [be] frozen, icicles [hang+] from the
        branches, smoke [rise] from every chimney, the nights [be+] long and still, the fields [be+] white,
        frost [cover] the windows, the wind [blow] from the north, the sparrows [sit+] close together"""),
}
"""Descriptions of a season; a verb in brackets takes the teller's tense, with + for the plural."""

PLACES: dict[str, str] = {
    "forest": "in",
    "meadow": "in",
    "garden": "in",
    "village": "in",
    "valley": "in",
    "orchard": "in",
    "barn": "in",
    "park": "in",
    "harbour": "in",
    "castle": "in",
    "mill": "at",
    "lake": "at",
    "river": "at",
    "pond": "at",
    "brook": "at",
    "bridge": "at",
    "beach": "on",
    "hill": "on",
    "mountain": "on",
    "island": "on",
    "farm": "on",
    "field": "in",
    "swamp": "in",
    "market": "at",
    "school": "at",
    "well": "at",
    "lighthouse": "at",
    "cottage": "in",
    "cornfield": "in",
    "vineyard": "in",
    "moor": "on",
    "crossroads": "at",
    "waterfall": "at",
    "quarry": "in",
    "stable": "in",
    "tower": "in",
    "workshop": "in",
    "kitchen": "in",
    "old oak": "at",
    "stone wall": "at",
    "hollow": "in",
    "shore": "on",
    "windmill": "at",
    "churchyard": "in",
    "town": "in",
    "bakery": "in",
    "library": "in",
    "canyon": "in",
    "cliff": "on",
}
"""Places and the preposition of each."""

FAR_PLACES = split("""sea, mountain, lighthouse, castle, island, waterfall, town, harbour, great forest,
    desert, big city, market, old tower, blue lake, glass palace""")

THINGS = split("""kite, drum, lantern, scarf, ball, hat, key, boat, bell, whistle, basket, blanket, mirror,
    flute, spoon, bucket, rope, umbrella, coat, ring, button, coin, book, map, feather, shell, wheel,
    hammer, shovel, broom, candle, cup, bowl, kettle, needle, ribbon, mitten, boot, slipper, cap, belt, bag,
    box, fiddle, trumpet, harp, doll, top, puppet, marble, wagon, sled, ladder, net, brush, comb, pillow,
    clock, letter, picture, pencil, stone, pearl, necklace, saddle, horseshoe, cowbell, teapot, jar, spade,
    rake, watering can, fishing rod, wooden horse, toy ship, snow globe, paper star, music box, walking
    stick""")
LOOKS = split("""red, blue, green, yellow, white, black, brown, grey, golden, silver, purple, orange, pink,
    round, tiny, old, new, shiny, wooden, striped, spotted, heavy, soft, broken, pretty""")

FOODS = split("""apple, pear, plum, cherry, peach, strawberry, carrot, turnip, potato, cabbage, onion, bean,
    nut, acorn, mushroom, berry, loaf of bread, piece of cheese, honey cake, bun, biscuit, pancake, pie,
    egg, dumpling, sausage, pumpkin, melon, grape, raisin bun, slice of ham, bowl of soup, cup of milk, jar
    of jam, pot of honey, bag of nuts, gingerbread heart, apple tart, corn cake, oat cookie""")

DISHES: dict[str, tuple[str, str]] = {
    "apple pie": ("flour", "apples"),
    "plum cake": ("butter", "plums"),
    "carrot soup": ("salt", "carrots"),
    "honey bread": ("flour", "honey"),
    "nut cake": ("sugar", "nuts"),
    "berry jam": ("sugar", "berries"),
    "pumpkin soup": ("cream", "a pumpkin"),
    "mushroom stew": ("onions", "mushrooms"),
    "cheese pie": ("milk", "cheese"),
    "pear tart": ("eggs", "pears"),
    "straw hat": ("straw", "a ribbon"),
    "paper kite": ("paper", "string"),
    "wooden boat": ("boards", "nails"),
    "warm blanket": ("wool", "thread"),
    "flower crown": ("daisies", "grass"),
    "bird house": ("boards", "moss"),
    "snowman": ("snow", "a carrot"),
    "little raft": ("logs", "rope"),
    "tree house": ("planks", "nails"),
    "clay pot": ("clay", "water"),
    "necklace of shells": ("shells", "string"),
    "toy wagon": ("wheels", "boards"),
    "swing": ("rope", "a board"),
    "broom": ("twigs", "a stick"),
    "scarecrow": ("straw", "an old coat"),
}
"""Things that can be made, and the two ingredients of each."""

SKILLS: dict[str, str] = {
    "swim": "swim",
    "sing": "sing",
    "dance": "dance",
    "whistle": "whistle",
    "skate": "skate",
    "read": "read",
    "juggle": "juggle",
    "play the flute": "play",
    "ride a pony": "ride",
    "bake bread": "bake",
    "climb trees": "climb",
    "draw": "draw",
    "sew": "sew",
    "play the drum": "play",
    "knit": "knit",
    "count to ten": "count",
    "row a boat": "row",
    "write letters": "write",
    "tie knots": "tie",
    "walk on stilts": "walk",
}

HOBBIES = split("""count clouds, paint shells, collect feathers, tell riddles, watch the stars, roll down
    hills, bake biscuits, read old maps, hum slow songs, splash in puddles, polish spoons, plant seeds,
    carve sticks, chase butterflies, listen to the rain, draw circles in the sand, build towers of stones,
    tidy the cupboard, whistle to the birds, look at the moon, press flowers, mend socks, skip over ditches,
    stack firewood, feed the fish, weave baskets, play chess, blow bubbles, ring bells, make up rhymes,
    sweep the steps, gather herbs, spin tops, ride on wagons, lie in the hay, taste honey, sort buttons,
    fold paper birds, water the roses, climb over fences, dig for worms, guess the weather""")

FEARS = split(
    "high places, deep water, the dark, heavy stones, sharp thorns, thunder, loud noises, strangers, spiders"
)
DUTIES = split("""carry some firewood, pick some berries, sweep the yard, find a lost button, fetch some
    water, sing a song, tell a riddle, mend a fence, feed the chickens, sort some nuts, wash the windows,
    water the beans, stack the plates, roll a barrel, shake the carpet, clean a pot""")

SPOTS: dict[str, list[str]] = {
    "high": split(
        "at the top of a tall pine, on the roof of the mill, on a high ledge, on the highest branch of "
        "a beech, on top of the tower"
    ),
    "water": split(
        "on a rock in the middle of the stream, on the far bank of the canal, on a small island in the "
        "marsh, on a raft out on the bay, among the reeds in deep water"
    ),
    "dark": split(
        "in a dark cave, at the end of a long tunnel, in a black cellar, deep in a gloomy mine, "
        "at the bottom of a dark shaft"
    ),
    "heavy": split(
        "under a big rock, under a fallen tree, beneath a heavy cart, behind a huge barrel, "
        "under a pile of logs"
    ),
    "narrow": split(
        "in a thick thorn bush, behind a narrow crack, inside a hollow log, under a prickly hedge, "
        "down a tiny hole"
    ),
}
NEEDS: dict[str, set[str]] = {
    "high": {FLY, CLIMB},
    "water": {FLY, SWIM},
    "dark": {NIGHT},
    "heavy": {STRONG},
    "narrow": {SMALL},
}
TOOLS = {"high": "ladder", "water": "boat", "dark": "lantern", "heavy": "rope", "narrow": "walking stick"}
FEAR_OF = {
    "high": "high places",
    "water": "deep water",
    "dark": "the dark",
    "heavy": "heavy stones",
    "narrow": "sharp thorns",
}
WHY_NOT = {
    "high": "climb so high",
    "water": "swim so far",
    "dark": "see in the dark",
    "heavy": "lift so much",
    "narrow": "squeeze inside",
}
HOW = {
    FLY: "[fly] there",
    CLIMB: "[climb] up",
    SWIM: "[swim] out",
    NIGHT: "[see] well in the dark",
    STRONG: "[push] with all might",
    SMALL: "[squeeze] inside",
}
WRONG_SPOTS = split("""under the bed, behind the door, in the tall grass, under the table, beside the well,
    behind the barn, in the old basket, under the bench, near the gate, among the leaves, in the cupboard,
    behind the curtain, on the stairs, beside the fence, in the flower bed, under the bridge, in the hay, by
    the fireplace, behind the stove, in the ditch""")
LOSSES = split("""the wind [have] blown it away, it [have] fallen out of a pocket, a gust of wind [have]
    taken it, the rain [have] washed it away, someone [have] moved it, it [have] rolled down a slope, it
    [have] slipped through a hole in a bag, it [have] been left outside at night""")
NOISES = split("""[play] the drum, [blow] a trumpet, [hammer] on a board, [scratch] on a fiddle, [ring] a
    big bell, [saw] thick planks, [whistle] the same tune again and again, [bang] two pans together""")

LESSONS = {
    "helped": split("""a friend makes hard things easy, two can do what one cannot, asking for help is wise,
        kindness finds its way back, good friends are worth more than gold, nobody has to do everything
        alone, a helping hand weighs more than a full purse, whoever asks gets an answer, a favour is never
        forgotten"""),
    "alone": split("""trying is the first step, a calm head finds the way, practice helps more than luck,
        small feet can go far, courage grows with every step, patience opens many doors, a good idea is half
        the work, one should know what one can do"""),
    "missed": split("""not every wish comes true at once, a sad day can still end well, some good things
        come by another road, it helps to share a sorrow, there is always another morning, a small comfort
        is better than a big complaint, losing something is not the end of the world"""),
}

MEETINGS = split("""on the way, at the crossing, by the road, behind a bush, on a log, under a tree, at the
    gate, near a big stone, on a bench, beside a cart""")
MISHAPS = split("""[fall] into the river, [sink] into the mud, [slip] away and [be] lost, [roll] into the
    swamp, [slide] down the slope and [be] gone, [drop] into the well""")
INCIDENTS = split("""[step] into a puddle, [hear] a cuckoo call, [count] eleven ducks, [lose] the path and
    [find] it again, [rest] on a low wall, [drink] from a cool brook, [greet] an old miller, [jump] over a
    ditch, [see] a rainbow, [pick] a blue flower, [wave] to a passing ship, [listen] to a blackbird, [sing]
    a marching song, [slip] on wet leaves, [watch] two beetles fight, [shelter] under a chestnut tree,
    [find] a silver penny, [laugh] at a funny cloud, [climb] over a broken gate, [stop] to smell the herbs,
    [follow] a narrow track, [talk] to a scarecrow, [chase] a yellow leaf, [meet] a row of caterpillars,
    [hide] from a passing dog, [get] mud on both feet, [read] an old signpost, [balance] on a log, [catch] a
    falling feather, [look] back at the smoke of the chimneys""")
FAILURES = split("it [go] wrong, it [look] silly, nothing [go] right, it [be] much too hard")
PRACTICE = split("three days, a whole week, many days, seven evenings")
BARRIERS = {
    "a wide river": "water",
    "a steep wall": "high",
    "a dark tunnel": "dark",
    "a deep ditch": "high",
    "a fallen tree": "heavy",
}
BAD_SHELTER = split("a bush, an old cart, a bridge, a thin tree, a wall")
TREATS = split("warm soup, hot milk, sweet tea, fresh bread, warm cocoa")
