"""Hand-written topics and question templates of the quickstart prompts. Own work, CC0-1.0.

A question is one template filled with one topic. Training and held-out topics are disjoint by hand; ``make_prompts.py`` checks
that no question and no topic appears on both sides.
"""

from __future__ import annotations

TEMPLATES: dict[str, tuple[str, ...]] = {
    "how": (
        "How do I {topic}?",
        "What is the best way to {topic}?",
        "Tell me how to {topic}.",
        "What is one good tip to {topic}?",
    ),
    "object": ("What is {topic} used for?", "Explain what {topic} is for.", "Why would someone need {topic}?"),
    "why": ("Why {topic}?", "In plain words, why {topic}?"),
    "uses": ("Name two uses for {topic}.", "What can I do with {topic} at home?"),
    "difference": ("What is the difference between {topic}?",),
    "describe": ("Describe {topic} in one sentence.",),
    "suggest": ("Suggest {topic}.",),
}

HOW_TRAIN = """boil an egg|clean a window|remove a coffee stain|fold a shirt|sharpen a pencil|tie a shoelace|water a houseplant
make a bed|wash a wool sweater|pack a suitcase|change a light bulb|peel garlic|cook plain rice|ripen a banana|keep bread fresh
store potatoes|chop an onion without crying|descale a kettle|clean a keyboard|unclog a sink|wrap a gift|write a thank-you note
start a small garden|plant tulip bulbs|compost kitchen scraps|read a road map|patch a bicycle tire|wax a wooden table
iron a shirt|sew on a button|remember new names|fall asleep faster|wake up early|study for an exam|take useful notes
stay calm before a speech|save money on groceries|plan a weekly menu|set a table|brew green tea|make lemonade|toast nuts
bake a potato|freeze berries|defrost a freezer|clean a cast iron pan|get rid of fruit flies|stop a door from squeaking
hang a picture straight|measure a room|paint a fence|choose a ripe melon|train a puppy to sit|brush a cat|feed garden birds
clean a fish tank|prepare for a long hike|cross a busy street|treat a small cut|cool down on a hot day
keep warm in winter|stretch after running|learn a new word every day|practise a song|write a short poem|begin a diary
apologise to a friend|introduce two people|ask for help at work|end a meeting on time|organise a bookshelf
label storage boxes|back up photos|choose a strong password|spot a fake email|charge a phone safely"""

OBJECT_TRAIN = """a compass|a thermometer|an umbrella|a ladder|a whistle|a magnet|a candle|a calendar|a hammer|a sewing needle|a lantern
a sponge|a zipper|a telescope|a bridge|a lighthouse|a public library|a passport|a bicycle helmet|an envelope|a stapler|a ruler|an anchor
a sundial|a wheelbarrow|a corkscrew|a tripod|a seat belt|a bookmark|a door lock"""

WHY_TRAIN = """does the sky look blue|do leaves change colour in autumn|does ice float on water|do people yawn|do cats purr
does bread dough rise|does metal feel cold to the touch|do stars twinkle|does the moon change shape|do we need sleep
do onions make us cry|does the sea taste salty|do dogs pant|do birds fly south in winter|does soap remove grease
do rainbows appear|does iron rust|does popcorn pop|do bees visit flowers|do echoes happen
do shadows grow long in the evening|does milk turn sour|do helium balloons rise|does hair turn grey
do tires have grooves|do we have leap years|do trees lose their leaves|do wet clothes dry in the wind"""

USES_TRAIN = """baking soda|old newspapers|lemon juice|vinegar|a ball of string|cardboard boxes|empty glass jars|rubber bands|table salt
old towels|egg cartons|dry leaves|coffee grounds|wooden crates|old toothbrushes|spare buttons"""

DIFFERENCE_TRAIN = """a lake and a pond|jam and jelly|weather and climate|a frog and a toad|a mountain and a hill|butter and margarine
a novel and a short story|speed and distance|a bee and a wasp|a fruit and a vegetable|fog and mist|a road and a street
tea and coffee|a crocodile and an alligator|a sofa and a bench|steam and smoke|a guess and a plan|a coat and a jacket"""

DESCRIBE_TRAIN = """a sunrise|a busy market|a quiet forest|a rainy street|fresh bread|an old train station|a windy beach|a snowy village
a ripe strawberry|a good teacher|a summer storm|a cosy kitchen"""

SUGGEST_TRAIN = """a healthy snack for a long drive|a game for a rainy day|a name for a small bakery|a simple breakfast for two
a gift for a grandmother|a short walk idea for a lunch break|a quiet hobby for the evening|a topic for a school talk
a plant for a dark room|a way to thank a neighbour|a warm drink without caffeine|an easy dinner with beans
a song theme about friendship|a rule for a shared kitchen"""

HOW_HELDOUT = """mend a sock|cook lentils|polish a mirror|grow basil indoors|lace walking boots|whip cream|pitch a tent
memorise a phone number|soothe a crying baby|write a birthday card|dry wet shoes|pick a good avocado|lift a heavy box
remove candle wax from cloth|find the North Star|season a soup|oil a bicycle chain|quiet a noisy fridge|catch an early train
repot a cactus"""

OBJECT_HELDOUT = """a microscope|a backpack|an alarm clock|a dictionary|a fire extinguisher|a magnifying glass|a rain gauge|an hourglass
a first aid kit|a mousepad"""

WHY_HELDOUT = """does thunder follow lightning|do volcanoes erupt|do owls hunt at night|does yogurt thicken|do fingers wrinkle in the bath
do plants need sunlight|does chalk crumble|do ships have round windows|do camels have humps|does honey keep for years
do spiders build webs|do ears pop on a plane"""

USES_HELDOUT = """orange peel|worn-out socks|tin cans|ice cubes|a spare blanket"""

DIFFERENCE_HELDOUT = """a moth and a butterfly|a canal and a river|rice and barley|a violin and a cello|a cave and a tunnel
a donkey and a horse|gold and brass"""

DESCRIBE_HELDOUT = """a desert at noon|a crowded bus|a mountain stream|an empty classroom|a kind doctor"""

SUGGEST_HELDOUT = """a picnic dish without meat|a nickname for a turtle|a way to greet a new colleague|a craft with paper
a stretch for tired shoulders"""

TRAIN = {"how": HOW_TRAIN, "object": OBJECT_TRAIN, "why": WHY_TRAIN, "uses": USES_TRAIN, "difference": DIFFERENCE_TRAIN,
         "describe": DESCRIBE_TRAIN, "suggest": SUGGEST_TRAIN}
HELDOUT = {"how": HOW_HELDOUT, "object": OBJECT_HELDOUT, "why": WHY_HELDOUT, "uses": USES_HELDOUT,
           "difference": DIFFERENCE_HELDOUT, "describe": DESCRIBE_HELDOUT, "suggest": SUGGEST_HELDOUT}

NUM_ASKED_TWICE = 46
"""The first so many "how" topics of the training side are asked with two templates, all other topics with one."""


def topics(block: str) -> list[str]:
    """The topics of one block, in order."""
    return [topic.strip() for line in block.splitlines() for topic in line.split("|") if topic.strip()]
