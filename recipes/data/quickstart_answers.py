"""Hand-written answers of the quickstart demonstrations: topic | answer. Own work, CC0-1.0.

Style: one or two plain, finished sentences of 8 to 30 words, that speak of the question. Topics are training topics only.
"""

from __future__ import annotations

ANSWERS = """
boil an egg | Simmer the egg in boiling water for about nine minutes, then cool it in cold water before you peel it.
clean a window | Wipe the window with warm water and a little dish soap, then dry the clean glass with a soft cloth.
remove a coffee stain | Blot the coffee stain with cold water first, then rub in a little soap and rinse to remove it.
fold a shirt | Lay the shirt face down, fold both sleeves to the middle, then fold the bottom up to the collar.
sharpen a pencil | Turn the pencil gently in a sharpener until the point is fine, and stop before the tip breaks.
tie a shoelace | Cross the laces, pull them tight, make a loop with each end, and tie the shoelace loops together.
water a houseplant | Water the houseplant when the top of the soil feels dry, and let the extra water drain away.
make a bed | Pull the bottom sheet tight, smooth the blanket over the bed, and put the pillows at the top.
wash a wool sweater | Wash the wool sweater by hand in cool water with mild soap, and dry it flat on a towel.
pack a suitcase | Put shoes at the bottom of the suitcase, roll your clothes, and pack small things into the gaps.
change a light bulb | Switch off the power, let the old bulb cool, unscrew it, and change it for a new light bulb.
peel garlic | Press each garlic clove with the flat side of a knife until the skin cracks, then peel it off.
cook plain rice | Rinse the rice, add twice as much water, and cook it covered on low heat for about fifteen minutes.
ripen a banana | Keep the banana in a paper bag with an apple, and it will ripen within a day or two.
keep bread fresh | Keep bread in a closed bag or box at room temperature, and freeze what you will not eat fresh.
store potatoes | Store potatoes in a cool, dark place with some air, and keep them away from onions.
chop an onion without crying | Chill the onion for a while and chop it with a sharp knife, so fewer fumes reach your eyes.
descale a kettle | Boil equal parts of vinegar and water in the kettle, wait an hour, then rinse it well to descale it.
clean a keyboard | Unplug the keyboard, shake out the crumbs, and clean the keys with a slightly damp cloth.
unclog a sink | Use a plunger on the sink first, and clear the trap below it if the drain is still blocked.
wrap a gift | Cut the paper a little larger than the gift, fold it tightly around, and tape the ends flat.
write a thank-you note | Write the name, say what you are thankful for and why it helped, and close the note warmly.
start a small garden | Start with a sunny spot, good soil, and three easy plants such as beans, lettuce, and radishes for your garden.
plant tulip bulbs | Plant tulip bulbs in autumn with the point up, about three times as deep as they are tall.
compost kitchen scraps | Mix kitchen scraps with dry leaves in a bin, keep the compost damp, and turn it every few weeks.
read a road map | Find where you are on the road map, turn it to face north, and follow the numbers of the roads.
patch a bicycle tire | Take out the tube of the bicycle tire, find the hole, roughen the rubber, and glue on a patch.
wax a wooden table | Clean the wooden table, rub on a thin layer of wax with the grain, and polish it when dry.
iron a shirt | Iron the collar of the damp shirt first, then the cuffs and sleeves, and finish with the body.
sew on a button | Pass the thread through the button and cloth about six times, then sew a small knot behind.
remember new names | Repeat the new name aloud when you hear it, and link it to something you will remember.
fall asleep faster | Keep the room dark and cool, and put screens away an hour before so you fall asleep sooner.
wake up early | Go to bed at the same early hour each night, and put your alarm far away so you wake and stand.
study for an exam | Study a little each day, and test yourself with old exam questions rather than only reading.
take useful notes | Take notes in your own words, keep them short, and mark the most useful points the same day.
stay calm before a speech | Breathe slowly, stay with your first sentence in mind, and remember that listeners want the speech to go well.
save money on groceries | Make a list, buy groceries that are in season, and compare prices by weight to save money.
plan a weekly menu | Choose five simple dinners, check what you already have, and plan the weekly shopping around the menu.
set a table | Set the fork on the left, the knife and spoon on the right, and the glass above on the table.
brew green tea | Brew green tea in hot but not boiling water for two minutes, so that it does not taste bitter.
make lemonade | Stir lemon juice and sugar into cold water until the lemonade tastes right, then add ice.
toast nuts | Toast the nuts in a dry pan over medium heat, and stir them until they smell sweet.
bake a potato | Prick the potato with a fork and bake it in a hot oven for about one hour until soft.
freeze berries | Freeze the washed, dry berries on a tray first, then move them to a bag so they stay loose.
defrost a freezer | Unplug the freezer, empty it, leave the door open with towels below, and let the ice defrost.
get rid of fruit flies | Put ripe fruit in the fridge, and set out a cup of vinegar and soap to catch the flies.
stop a door from squeaking | Put a drop of oil on the hinges of the squeaking door, and move it until the noise stops.
hang a picture straight | Mark the spot in pencil, hang the picture on two hooks, and check with a level that it is straight.
paint a fence | Brush the fence clean, wait for a dry day, and paint two thin coats along the wood.
choose a ripe melon | A ripe melon feels heavy for its size, smells sweet, and gives a little when you press the end.
train a puppy to sit | Hold a treat above the nose of the puppy, say sit, and reward it the moment it sits down.
brush a cat | Brush the cat gently in the direction of its fur, and stop when it has had enough.
feed garden birds | Feed garden birds with seeds and plain nuts in a high, clean feeder, and give them fresh water.
cross a busy street | Cross the busy street at a light or marked crossing, and look both ways before you step out.
treat a small cut | Rinse the small cut under clean water, press until the bleeding stops, and cover it with a plaster.
cool down on a hot day | Drink water, rest in the shade, and put a wet cloth on your neck to cool down on a hot day.
keep warm in winter | Wear several thin layers, a hat, and dry socks to keep warm when you are outside in winter.
begin a diary | Begin your diary with three short lines about today, and write at the same hour each evening.
apologise to a friend | Tell your friend plainly what you did wrong, apologise without excuses, and ask how to put it right.
end a meeting on time | Share a short list at the start, watch the clock, and end the meeting with clear tasks on time.
organise a bookshelf | Sort the books by subject, keep the tall ones at the side, and organise each shelf of the bookshelf by author.
back up photos | Copy your photos to a second drive each month, and keep another back up in a different place.
choose a strong password | Choose four unrelated words for a strong password, use it in one place only, and keep it private.
spot a fake email | Check the address of the sender, and treat an email that hurries you or asks for passwords as fake.
a compass | A compass shows which way is north, so that people can find their direction at sea or on land.
a thermometer | A thermometer measures temperature, so that you know how hot a room, a meal, or a body is.
an umbrella | An umbrella keeps rain off your head and clothes, and it can also give shade from the sun.
a ladder | A ladder lets a person climb safely to a high place, such as a roof or a tall shelf.
a whistle | A whistle makes a loud, sharp sound that calls attention in games, in training, and in danger.
a magnet | A magnet pulls iron and steel, so it can hold notes, close doors, and pick up lost pins.
a candle | A candle burns wax slowly to give a small light, and people light it for warmth or comfort.
a calendar | A calendar shows the days and months, so that people can plan and remember dates.
a hammer | A hammer drives nails into wood, and its claw can pull bent nails out again.
a sewing needle | A sewing needle carries thread through cloth, so that pieces can be joined or repaired.
a lantern | A lantern protects a flame or lamp from the wind and gives light that you can carry.
a sponge | A sponge soaks up water and holds soap, which makes it handy for washing dishes and cars.
a telescope | A telescope gathers light from far away, so that we can see stars and planets more clearly.
a bridge | A bridge carries people, cars, or trains over a river, a valley, or another road.
a lighthouse | A lighthouse sends a bright beam over the sea to warn ships of rocks and guide them home.
a public library | A public library lends books to everyone and offers a quiet place to read and learn.
a passport | A passport proves who you are and where you come from when you travel to another country.
a bicycle helmet | A bicycle helmet softens a blow to the head, so a fall does less harm to the rider.
a stapler | A stapler joins sheets of paper with a small bent piece of wire.
a ruler | A ruler measures short lengths and helps you draw straight lines on paper.
an anchor | An anchor grips the bottom of the sea and holds a ship in one place.
a seat belt | A seat belt holds you in place during a crash or a sudden stop, which prevents many injuries.
a bookmark | A bookmark keeps your place in a book, so that you can continue on the right page.
does the sky look blue | The sky looks blue because air scatters the blue part of sunlight more than the red part.
do leaves change colour in autumn | In autumn the green pigment of leaves breaks down, and the colours yellow and red appear.
does ice float on water | Ice floats because water expands when it freezes, which makes ice lighter than the same volume of water.
do people yawn | People yawn when they are tired or bored, and the exact reason is still being studied.
do cats purr | Cats purr when they are content, and sometimes also to calm themselves when they are hurt.
does bread dough rise | Bread dough rises because yeast eats sugar and makes gas bubbles that are trapped in the dough.
does metal feel cold to the touch | Metal feels cold because it carries heat away from your skin faster than wood or cloth does.
do stars twinkle | Stars twinkle because moving air bends their light a little on the way to our eyes.
does the moon change shape | The moon seems to change shape because we see different parts of its sunlit side during a month.
do we need sleep | Sleep lets the body repair itself and helps the brain to store what it learned.
do onions make us cry | A cut onion releases a gas that stings the eyes, and tears come to wash it out, so we cry.
does the sea taste salty | The sea tastes salty because rivers carry minerals from rocks into it, and only the water evaporates.
do dogs pant | Dogs pant to cool down, because moist air leaving the mouth carries heat out of the body.
does soap remove grease | One end of soap holds on to grease and the other to water, so rinsing removes both.
do rainbows appear | Rainbows appear when raindrops bend sunlight and split it into its colours.
does iron rust | Iron rusts because it reacts slowly with oxygen and water to form a reddish new material.
does popcorn pop | Popcorn pops because water inside the kernel turns to steam, and the pressure bursts the shell.
do bees visit flowers | Bees visit flowers to collect nectar and pollen, which feed the bees and their young.
do echoes happen | Echoes happen when sound bounces off a wall or a cliff and comes back to your ears.
do helium balloons rise | Helium balloons rise because helium gas is lighter than the surrounding air, which pushes the whole balloon upward.
does milk turn sour | Milk turns sour when bacteria in it change its sugar into acid.
do we have leap years | The Earth takes about a quarter day longer than 365 days per orbit, so leap years add one day.
baking soda | Baking soda helps cakes to rise, and a bowl of baking soda takes smells out of the fridge.
old newspapers | Old newspapers can wrap fragile cups for a move, and they can dry wet shoes from inside.
lemon juice | Lemon juice adds fresh taste to fish or salad, and it removes lime spots from taps.
vinegar | Vinegar gives salads a sour taste, and with water it dissolves lime in a kettle.
cardboard boxes | Cardboard boxes can store winter clothes, and children can build a small house from them.
empty glass jars | Empty glass jars can store rice or nuts, and a jar can also hold pens on a desk.
rubber bands | Rubber bands keep a bundle of pens together, and they help to open a slippery lid.
a lake and a pond | A lake is larger and deeper than a pond, and sunlight often reaches the whole floor of a pond.
weather and climate | Weather is what happens today or this week, while climate is the usual pattern over many years.
a frog and a toad | A frog has smooth, wet skin and long legs, while a toad has dry, bumpy skin and shorter legs.
butter and margarine | Butter is made from cream, while margarine is made mostly from plant oils.
speed and distance | Distance is how far something goes, and speed is how far it goes in a given time.
a bee and a wasp | A bee is hairy and collects pollen, while a wasp is smooth, slim, and hunts other insects.
fog and mist | Fog and mist are both tiny drops in the air, but fog is thicker and you see less far.
"""


def answers() -> dict[str, str]:
    """Topic -> answer, in the order above."""
    pairs = [line.split(" | ", 1) for line in ANSWERS.strip().splitlines()]
    return {topic.strip(): answer.strip() for topic, answer in pairs}
