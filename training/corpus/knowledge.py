"""Knowledge of the demo model besides its stories: tables of small facts, and topics outside its world."""

from lexicon import pairs, split

OPPOSITES = pairs("""big: small, hot: cold, day: night, up: down, left: right, open: closed, full: empty,
    fast: slow, high: low, hard: soft, wet: dry, old: young, rich: poor, happy: sad, light: heavy, loud:
    quiet, long: short, wide: narrow, thick: thin, early: late, clean: dirty, bright: dark, sweet: sour,
    near: far, inside: outside, above: below, always: never, first: last, good: bad, brave: afraid, sharp:
    blunt, strong: weak, deep: shallow, smooth: rough, tight: loose, true: false, begin: end, give: take,
    push: pull, buy: sell, laugh: cry, win: lose, arrive: leave, remember: forget, find: lose, come: go,
    sit: stand, rise: fall, love: hate, ask: answer, friend: enemy, north: south, east: west, summer:
    winter, morning: evening, sunrise: sunset, black: white, front: back, top: bottom, more: less, many:
    few, everything: nothing, everyone: nobody, asleep: awake, alone: together, polite: rude, cheap: dear,
    straight: crooked, simple: difficult, calm: stormy, careful: careless, tidy: messy, raw: cooked, tame:
    wild, fresh: stale, before: after, yes: no, with: without, lazy: busy, shy: bold, honest: dishonest,
    greedy: generous, kind: cruel, cheerful: gloomy, ripe: unripe""")

YOUNG = pairs("""dog: puppy, cat: kitten, cow: calf, horse: foal, sheep: lamb, goat: kid, pig: piglet, hen:
    chick, duck: duckling, goose: gosling, swan: cygnet, bear: cub, lion: cub, fox: cub, wolf: pup, seal:
    pup, deer: fawn, frog: tadpole, owl: owlet, eagle: eaglet, kangaroo: joey, rabbit: kit, butterfly:
    caterpillar, elephant: calf, whale: calf, moose: calf, otter: pup, bat: pup, hare: leveret, donkey:
    foal, squirrel: kit, mouse: pup""")

HOMES = pairs("""bird: nest, bee: hive, dog: kennel, horse: stable, cow: barn, pig: sty, rabbit: burrow,
    fox: den, bear: cave, spider: web, beaver: lodge, hen: coop, ant: anthill, mole: tunnel, snail: shell,
    sheep: fold, owl: hollow tree, badger: sett, wolf: den, squirrel: drey""")

SOUNDS = pairs("""dog: barks, cat: meows, cow: moos, horse: neighs, sheep: bleats, pig: grunts, hen: clucks,
    duck: quacks, owl: hoots, frog: croaks, bee: buzzes, lion: roars, wolf: howls, mouse: squeaks, snake:
    hisses, crow: caws, donkey: brays, goose: honks, elephant: trumpets, cricket: chirps, pigeon: coos,
    rooster: crows, bear: growls""")

COLOURS = pairs("""grass: green, snow: white, blood: red, a lemon: yellow, a banana: yellow, coal: black, a
    carrot: orange, a cherry: red, milk: white, a leaf in spring: green, a plum: purple, the sky on a clear
    day: blue, chocolate: brown, a strawberry: red, a pumpkin: orange, a swan: white, a crow: black, a frog:
    green, salt: white, a tomato: red, a pea: green, an orange: orange, ink: black, a lilac: purple, a
    violet: purple, a sunflower: yellow, a polar bear: white, a flamingo: pink, an elephant: grey, a mouse:
    grey, silver: grey, wood: brown, honey: golden, a cucumber: green, chalk: white, soot: black, a fire
    engine: red, a daffodil: yellow, a raspberry: red""")

CATEGORIES: dict[str, list[str]] = {
    name: split(text)
    for name, text in {
        "fruit": """apple, pear, plum, cherry, peach, grape, melon, banana, lemon, orange, apricot, fig,
        date, mango,
        strawberry, raspberry, blackberry, blueberry, gooseberry, pineapple, lime, coconut""",
        "vegetable": """carrot, turnip, potato, cabbage, onion, bean, pea, leek, spinach, radish, cucumber,
        lettuce,
        celery, beetroot, garlic, parsnip, cauliflower, pepper""",
        "tree": "oak, beech, birch, pine, fir, willow, maple, elm, chestnut, poplar, ash, cedar, spruce",
        "flower": """rose, tulip, daisy, lily, violet, poppy, daffodil, sunflower, snowdrop, lilac, primrose,
        buttercup,
        dandelion, orchid, bluebell, crocus, carnation, iris""",
        "bird": """owl, crow, robin, swallow, stork, magpie, pigeon, sparrow, heron, duck, goose, swan, hen,
        eagle, hawk,
        falcon, parrot, penguin, cuckoo, lark, nightingale, woodpecker, thrush, wren, ostrich, peacock,
        turkey""",
        "fish": "salmon, trout, herring, pike, carp, shark, eel, cod, tuna, perch",
        "insect": """ant, bee, beetle, wasp, fly, butterfly, moth, cricket, ladybird, dragonfly, grasshopper,
        mosquito,
        flea""",
        "tool": """hammer, saw, shovel, spade, rake, axe, needle, scissors, pliers, file, drill, chisel,
        screwdriver, broom,
        brush, ladder, wrench, anvil, pitchfork, sickle""",
        "instrument": """drum, flute, fiddle, trumpet, harp, piano, guitar, bell, whistle, organ, cello,
        horn, accordion,
        clarinet, banjo, triangle, oboe""",
        "piece of clothing": """scarf, hat, coat, mitten, boot, cap, shirt, skirt, dress, jacket, sock,
        glove, apron, vest,
        jumper, sandal, shawl, blouse, slipper, cloak""",
        "piece of furniture": "table, chair, bed, cupboard, bench, shelf, desk, stool, sofa, armchair",
        "drink": "milk, water, tea, juice, cocoa, lemonade, coffee, cider",
        "toy": "kite, ball, doll, top, puppet, marble, rattle, yo-yo, hoop, jigsaw, rocking horse",
        "part of the body": """head, arm, leg, hand, foot, nose, ear, eye, mouth, knee, elbow, shoulder,
        finger, toe, neck,
        back, chin, cheek, heel, thumb, wrist, ankle, stomach, forehead""",
        "job": """farmer, baker, miller, gardener, shepherd, fisherman, tailor, smith, carpenter, teacher,
        doctor, nurse,
        sailor, cook, painter, barber, butcher, weaver, potter, hunter, judge, postman, mason, cobbler,
        singer,
        clown, librarian, dentist, plumber, pilot, grocer, beekeeper""",
        "vehicle": "wagon, cart, sled, boat, ship, train, bicycle, bus, car, ferry",
        "colour": "red, blue, green, yellow, white, black, brown, grey, orange, purple, pink, golden, silver",
        "metal": "iron, gold, silver, copper, tin, lead, steel, brass, bronze",
        "shape": "circle, square, triangle, rectangle, star, oval, heart, diamond, cube",
        "mammal": """dog, cat, cow, horse, sheep, goat, pig, fox, wolf, bear, otter, beaver, squirrel, mole,
        rabbit,
        badger, mouse, bat, elephant, lion, tiger, monkey, deer, hare, seal, whale, kangaroo, camel, giraffe,
        zebra,
        dolphin, hippo, rhino, leopard, panda, koala, walrus, buffalo, weasel, rat, hamster""",
        "kind of weather": "rain, snow, wind, fog, hail, thunder, frost, sunshine, storm, mist, lightning",
        "kind of food": """bread, cheese, butter, soup, cake, pie, honey, jam, egg, rice, porridge, sausage,
        pancake, salad,
        noodles, pudding, stew, biscuit, ham, dumpling, yoghurt, cream, mustard, vinegar""",
        "part of a house": """door, window, roof, wall, floor, stairs, cellar, attic, kitchen, bedroom,
        chimney, hall,
        balcony, bathroom, ceiling, doorstep, pantry""",
        "member of the family": """mother, father, sister, brother, grandmother, grandfather, aunt, uncle,
        cousin, niece,
        nephew, daughter, son""",
        "gem": "ruby, diamond, emerald, pearl, sapphire, amber, opal, topaz",
    }.items()
}

PURPOSES = pairs("""key: to open a lock, umbrella: to stay dry in the rain, needle: to sew, spoon: to eat
    soup, broom: to sweep the floor, lantern: to see in the dark, clock: to tell the time, ladder: to climb
    up high, hammer: to drive nails, bed: to sleep in, book: to read, boat: to cross the water, pencil: to
    write and draw, blanket: to keep warm, bucket: to carry water, net: to catch fish, comb: to tidy hair,
    kettle: to boil water, saw: to cut wood, scissors: to cut paper, map: to find the way, candle: to give
    light, soap: to wash, oven: to bake bread, rope: to tie things, mirror: to see yourself, chimney: to let
    the smoke out, bridge: to cross a river, mill: to grind grain, well: to get water, basket: to carry
    things, whistle: to call someone, glasses: to see better, shovel: to dig, drum: to make music, pillow:
    to rest your head, stove: to heat the room, cup: to drink from""")

PLACES_OF_WORK = pairs("""baker: bakes bread, farmer: grows food, tailor: sews clothes, fisherman: catches
    fish, smith: works with iron, teacher: teaches children, doctor: helps the sick, shepherd: looks after
    sheep, gardener: grows flowers, carpenter: builds with wood, miller: grinds grain, cook: cooks meals,
    painter: paints pictures, sailor: sails ships, cobbler: mends shoes, weaver: weaves cloth, potter: makes
    pots, postman: brings letters, barber: cuts hair, librarian: lends books, beekeeper: looks after bees,
    judge: decides who is right, nurse: cares for the sick, singer: sings songs, clown: makes people laugh,
    hunter: hunts in the woods, mason: builds with stone""")

DAYS = split("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = split(
    """January, February, March, April, May, June, July, August, September, October, November, December"""
)
NUMBERS = split("""zero, one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve,
    thirteen, fourteen, fifteen, sixteen, seventeen, eighteen, nineteen, twenty""")
LEGS = pairs("""dog: four, cat: four, bird: two, spider: eight, ant: six, beetle: six, snake: no, horse:
    four, cow: four, duck: two, bee: six, fish: no, frog: four, hen: two, chair: four, snail: no, worm: no,
    fly: six, person: two""")

OUTSIDE = split("""the president of France, the capital of Peru, quantum physics, the stock market, the
    speed of light, football results, the price of oil, computer chips, the second world war, tax law, black
    holes, the internet, algebra, the moon landing, electric cars, chemistry, the Roman Empire, vitamins,
    the largest bank, genetics, airline tickets, the latest films, jazz, philosophy, the parliament, the
    Pacific Ocean, volcanoes in Japan, the inventor of the telephone, programming, the theory of relativity,
    tennis champions, antibiotics, the Eiffel Tower, the stone age, the weather in Berlin, mobile phones,
    the population of India, satellites, democracy, the Olympic Games, cryptography, interest rates, opera,
    atoms, dinosaurs, the human brain, insurance, earthquakes, elections, the Great Wall of China, radio
    waves, the French language, plastic, rockets, nuclear power, Shakespeare, Beethoven, the Nile, Mount
    Everest, the Renaissance, email, passports, solar energy, robots, microscopes""")
OUTSIDE_HELD_OUT = split("""the queen of Spain, gravity waves, the capital of Australia, video games, the
    height of the Alps, trade unions, Mozart, hydrogen, the Amazon, Napoleon, smartphones, calculus, the
    history of Rome, pop music, machine learning, the euro, Antarctica, viruses, the United Nations,
    lasers""")
OUTSIDE_QUESTIONS = split("""What do you know about {t}?, Tell me about {t}., Can you explain {t}?, What can
    you say about {t}?, I have a question about {t}., Who knows most about {t}?, How does one learn about
    {t}?, Give me the facts about {t}., Write a report on {t}., What is new about {t}?, Why is everyone
    talking about {t}?, Please describe {t}., When did people begin to study {t}?, Do you know anything
    about {t}?, Who discovered {t}?, How much does one pay for {t}?, Is {t} important?""")
OUTSIDE_ASKED = split("""Who is the president of France?, What is the capital of Peru?, How far is the
    moon?, How fast is light?, Who won the football match?, What does oil cost?, Who wrote Hamlet?, How do
    computers work?, When did the second world war end?, How do I pay my taxes?, What is a black hole?,
    Who invented the telephone?, How many people live in India?, What is the square root of two?, Write a
    program in Python., Write a poem about the sea., Translate this into French., What is the weather in
    Berlin?, How old is the earth?, Where is Mount Everest?, What is the longest river?, Who painted the
    Mona Lisa?, What is DNA?, How does a car engine work?, Which phone should I buy?, What is the meaning
    of life?, Who is the richest man?, Where is Japan?, What language do they speak in Brazil?, How tall
    is the Eiffel Tower?, What is an atom?, Who was Julius Caesar?, When was Mozart born?, How do vaccines
    work?, What is the boiling point of water?, What is the population of China?, Can you drive a car?,
    What is the news today?, What time is it?, What is the date?, Who are the Beatles?, What is a neural
    network?, Recommend a film., How do I fix my computer?, What is gross domestic product?, Who
    discovered America?, Where can I buy a ticket?, Is there life on Mars?, How do planes fly?, What is
    electricity?, Why is the sky blue?, What is the best pizza in town?, Who is Albert Einstein?, How much
    is a dollar in euros?, Explain the theory of evolution., Do you like politics?, What happened in
    1969?, How many planets are there?, What is your telephone number?, Summarize this article., Which
    team is the best?, Who is the mayor?""")
OUTSIDE_ASKED_HELD_OUT = split("""Who is the king of Norway?, What is the capital of Australia?, How deep
    is the Pacific Ocean?, Who wrote Faust?, When did the Roman Empire fall?, What is a quark?, How do I
    cook lasagne in a microwave?, What does gold cost?, Who invented the light bulb?, How many people live
    in Spain?, What is the cube root of eight?, Write a program in Java., Where is Kilimanjaro?, Which
    laptop should I buy?, Who was Napoleon?, How does a fridge work?, What is the exchange rate of the
    yen?, Who is the pope?, How tall is Big Ben?, When was Bach born?""")
STRANGE_QUESTIONS = split("""What is {t}?, Who is {t}?, Where is {t}?, Who was {t}?, What does {t} mean?,
    How big is {t}?, What is the capital of {t}?, Who invented {t}?, How do I make {t}?, When was {t}
    born?, What is {t} called?, How many people live in {t}?, Who is the king of {t}?, How old is {t}?, Do
    you like {t}?, What does {t} cost?, Where can I find {t}?""")
DECLINE = [
    "I do not know that. I only know my small world.",
    "I am sorry, I do not know that.",
    "That is outside my small world, so I do not know.",
    "I do not know anything about that. Ask me for a story instead!",
    "I do not know. I know stories, animals, opposites, days and small sums.",
    "Sorry, I do not know that. Shall I tell you a story?",
]
