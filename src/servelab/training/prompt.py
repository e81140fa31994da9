"""Prompts that the target answers: put together from forms, subjects and short passages, so that no two are alike.

All of it was written for this purpose. A draft head learns how its target writes, not what is true, so what
matters is that the kinds of answer are many: prose, lists, code, letters, tables, sums, dialogue, rewriting.
"""

import random
from collections.abc import Iterator

SUBJECTS = """
the water cycle|photosynthesis|the French Revolution|black holes|compound interest|vaccines|plate tectonics
the Roman Empire|electric cars|machine learning|the human heart|renewable energy|jazz music|chess openings
bread baking|the Great Wall of China|coral reefs|supply and demand|the printing press|sleep|meditation
public speaking|bicycles|volcanoes|the immune system|quantum computers|urban gardening|coffee|the Olympic Games
time management|remote work|climate change|the solar system|databases|the Renaissance|honey bees|whales|bridges
recycling|the stock market|earthquakes|the telephone|video games|poetry|Japanese cooking|the Sahara desert|genetics
electricity|inflation|running a marathon|learning a language|negotiation|team work|job interviews|small talk
housing prices|tea|the ocean|airplanes|the Silk Road|dinosaurs|the moon landing|antibiotics|social media
online shopping|public libraries|football|swimming|yoga|healthy breakfasts|cats|dogs|migrating birds|the rainforest
glaciers|solar panels|wind turbines|batteries|cloud computing|encryption|passwords|open source software
operating systems|compilers|sorting algorithms|recursion|hash tables|the internet|web browsers|spreadsheets
statistics|probability|fractions|algebra|geometry|prime numbers|the scientific method|philosophy|stoicism|democracy
the constitution|human rights|museums|photography|watercolour painting|theatre|cinema|the guitar|the piano|opera
folk tales|mythology|the Vikings|ancient Egypt|the Industrial Revolution|railways|shipping containers|coffee shops
restaurants|budgeting|saving money|insurance|taxes|mortgages|start-ups|marketing|customer service|leadership
project management|mentoring|feedback|motivation|habits|stress|friendship|parenting|school uniforms|homework|exams
university|scholarships|volunteering|charity|camping|hiking|travelling by train|road trips|packing a suitcase
airports|hotels|Italy|Brazil|Kenya|India|Norway|Mexico|Korea|Egypt|Canada|Iceland|Peru|gravity|light|sound|magnets
atoms|the periodic table|acids and bases|cells|bacteria|viruses|blood|bones|muscles|the brain|memory|dreams|emotions
nutrition|vitamins|sugar|salt|chocolate|cheese|rice|pasta|soup|salads|spices|street food|apples|tomatoes|roses
oak trees|mushrooms|ants|butterflies|sharks|penguins|elephants|horses|owls|snakes|frogs|wolves|bears|rivers|lakes
mountains|islands|weather forecasts|hurricanes|snow|rain|seasons|deserts|farming|soil|forests|national parks|robots
drones|3D printing|smartphones|satellites|space telescopes|Mars|rockets|nuclear power|hydrogen|steel|glass|paper
fashion|shoes|wedding planning|birthday parties|gift ideas|interior design|cleaning a kitchen|laundry|house plants
tools
"""

FORMS = """
Explain {s} in simple terms.|What is {s}?|Tell me about {s}.|Give me a short introduction to {s}.
Write a short paragraph about {s}.|Write three paragraphs about {s}.
Summarise what is known about {s} in five sentences.|Explain {s} to a ten-year-old.
Explain {s} to a university student.|Why is {s} important?|What are the benefits of {s}?|List five facts about {s}.
List ten interesting facts about {s}.|Give me three tips about {s}.|Give me seven tips on {s}.
What are the main ideas behind {s}?|What are common mistakes people make with {s}?
What should a beginner know about {s}?|Describe the history of {s}.|How has {s} changed over the last hundred years?
What will the future of {s} look like?|Compare {s} and {t}.|What is the difference between {s} and {t}?
How are {s} and {t} related?|Write a short story about {s}.|Write a story in which {s} and {t} play a part.
Write a poem about {s}.|Write a haiku about {s}.|Write a limerick about {s}.|Write a song lyric about {s}.
Write a dialogue between two friends about {s}.|Write a conversation between a teacher and a pupil about {s}.
Write a blog post about {s}.|Write a news article about {s}.|Write an introduction for an essay about {s}.
Write a conclusion for an essay about {s}.|Write an outline for a talk on {s}.
Write a five-question quiz about {s} with answers.|Write three multiple choice questions about {s}.
Make a table with two columns that lists terms about {s} and what they mean.|Define five important words about {s}.
What questions should I ask an expert on {s}?|Argue for and against {s}.|What do people often get wrong about {s}?
Give me pros and cons of {s}.|Write a product description that has to do with {s}.
Write a slogan for a campaign on {s}.|Write an email to a colleague about {s}.
Write a letter to a newspaper about {s}.|Write a tweet about {s}.|Plan a one-week course on {s}.
Plan a lesson of one hour on {s}.|Suggest three books that someone who likes {s} could read.
How do I get started with {s}?|Give step-by-step advice on {s}.|How does {s} affect daily life?
How does {s} affect the economy?|What would the world be like without {s}?|Which jobs have to do with {s}?
How can children learn about {s}?|Write a speech of one minute about {s}.|Write a riddle about {s}.
Describe a picture that shows {s}.|Translate this into French: I would like to learn more about {s}.
Translate into Spanish: {S} is very interesting.|Give me a metaphor for {s} and explain it.
Complete the sentence and go on: The best thing about {s} is|Once upon a time, {s}
I have to give a presentation about {s}. Can you help me?|I don't understand {s}. Where should I begin?
Can you recommend a weekend activity that involves {s}?|What are five good names for a shop that is all about {s}?
Who were important people in connection with {s}?|Give an example of {s} from everyday life.
Is {s} dangerous? Explain.
"""

CODE = """
reverses a string|checks whether a number is prime|computes the factorial of n|returns the n-th Fibonacci number
counts the vowels in a text|finds the largest number in a list|removes duplicates from a list
sorts a list with bubble sort|sorts a list with quicksort|searches a sorted list by bisection
merges two sorted lists|checks whether a word is a palindrome|counts how often each word occurs in a text
converts Celsius to Fahrenheit|computes the mean and the median of a list|flattens a nested list|transposes a matrix
multiplies two matrices|finds the greatest common divisor|reads a CSV file|writes a dictionary to a JSON file
downloads a web page|validates an email address|generates a random password
computes the number of days between two dates|converts a number to binary|converts Roman numerals to integers
implements a stack|implements a queue|implements a linked list|traverses a binary tree
finds the shortest path in a graph|groups a list of words by their first letter|rolls two dice a thousand times
plays tic-tac-toe|simulates a bank account|computes the area of a circle|prints a multiplication table
counts the lines of a file|rotates a list by k places|finds all pairs that sum to a target
checks whether two strings are anagrams|computes compound interest|sums even numbers
"""

LANGUAGES = ("Python", "Python", "Python", "JavaScript", "Java", "C", "SQL", "Bash", "Go", "Rust")
CODE_FORMS = """
Write a {l} function that {c}.|Write a {l} program that {c}, with comments.|How do I write code that {c} in {l}?
Show me a simple {l} example that {c} and explain it line by line.|Write a {l} class that {c}.
Write unit tests for a {l} function that {c}.|Explain how an algorithm that {c} works.
What is the time complexity of code that {c}?|Write pseudocode that {c}.
"""

NAMES = (
    """Anna|Ben|Carla|David|Elena|Farid|Grace|Hiro|Ines|Jonas|Kofi|Lena|Marco|Nadia|Omar|Priya|Rosa|Sam|Tara|Yusuf"""
)
PLACES = """
the town hall|the school gym|the city library|room 204|the north park|the harbour|the community centre|the museum
"""
THINGS = """
apples|pencils|books|tickets|eggs|marbles|cookies|stamps|chairs|bottles|oranges|cards|flowers|boxes
"""
DAYS = """
Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday
"""
MOODS = """
happy|sad|angry|nervous|proud|tired|curious|grateful|lonely|excited
"""
STYLES = """
more formal|more friendly|shorter|simpler|more polite|more exciting|in the past tense|in the third person|as a list
"""

PASSAGES = """
Dear team, the meeting about {s} moves from {d} to {e} at {h} o'clock in {p}. {n} will bring the figures of last
month, and {m} will show the new plan. Please read the notes before we meet and send me your questions by noon.

{n} opened a small shop for {g} near {p} last year. At first hardly anyone came, but after {m} wrote about it in the
local paper, {x} people visited in a single week. Now {n} wants to hire two assistants and open on {d} as well.

On {d} evening {n} and {m} walked to {p} to hear a talk on {s}. The speaker was late, the microphone did not work, and
half of the {x} seats stayed empty. Still, both agreed that it was the best talk they had heard this year.

I bought this lamp three weeks ago. The light is warm and bright, and it was easy to put together. However, the switch
broke after {h} days, and customer service took a week to answer. I would give it three stars out of five.

The course on {s} starts on {d} at {h} o'clock in {p}. It costs {x} euros and lasts ten weeks. Bring your own
notebook; drinks are provided. To sign up, write to {n} or call the office before {e}.

Our trial of {s} ran for {h} weeks with {x} people. Two thirds of them said that they would take part again, a fifth
were not sure, and the rest found it too hard. {n}, who led the study, said that the results were better than
expected.

{n} had {x} {g} and wanted to share them with {m}. On the way to {p} it began to rain, the bag tore, and the {g}
rolled down the street. A stranger helped to pick them up and would not take a reward.

The city plans to close the road to {p} for {h} months. Shops fear that they will lose customers, while neighbours
look forward to quiet nights. A vote will be held on {d}, and {n} has called a public meeting on {e} to talk about
{s}.

Minutes: present were {n}, {m} and eight others. First, {n} reported on {s}; costs are {x} euros under plan. Second,
{m} asked for more time until {d}, which was granted. Third, the next meeting is on {e} in {p}.

Many people believe that {s} is something for experts only. In truth, a little practice every day is enough to make
progress. {n} began with ten minutes each morning and after {h} months could teach others. The secret, {n} says, is
never to skip two days in a row.
"""

PASSAGE_FORMS = """
Summarise this text in one sentence:|Summarise the following text:|List the key points of this text:
Who is mentioned in the following text, and what do they do?|Extract all names, days and numbers from this text:
Rewrite this text so that it is {y}:|Rewrite the following in your own words:
Give this text a title and explain your choice:|What happens next? Continue the text:
Correct any mistakes in this text and return it:|Turn this text into a list of bullet points:
Write three questions about this text and answer them:|Write a reply to this:
Is the following text positive or negative? Explain:|Turn the following into a short poem:
Translate this text into simple English:|Turn this text into a JSON object:
"""

SUMS = """
{n} has {a} {g} and buys {b} more. Then {n} gives {c} to {m}. How many {g} are left?|What is {a} plus {b}?
What is {a} times {c}?|A train travels {a} kilometres in {h} hours. How fast is it on average?
What is {c} percent of {a}? Show your work.
A shirt costs {a} euros and is reduced by {c} percent. What does it cost now?|Solve for x: {c}x + {h} = {a}.
{n} reads {c} pages a day. How long does a book of {a} pages take?|Is {a} a prime number? Explain.
Write {a} in words and in binary.
A rectangle is {c} metres long and {h} metres wide. What are its area and its perimeter?
Sort these numbers: {a}, {b}, {c}, {h}.
{n} earns {a} euros a week and spends {b}. How much is saved after {h} weeks?
The average of {a}, {b} and {c} is what? Explain step by step.
"""

LIFE = """
I feel {f} today because of {s}. What can I do?|Write a message to {n} to say that I am {f}.
How do I tell {n} that I cannot come on {d}?|Write an invitation to a party at {p} on {d}.
Write a thank-you note to {n} for help with {s}.|Write a complaint about a late delivery of {g}.
Plan a {d} for a family with two children who like {s}.|Give me a recipe with {g} for {h} people.
Write a cover letter for a job that has to do with {s}.|Write a story about {n}, who is {f} and finds {g} at {p}.
Write a scene in which {n} and {m} argue about {s}.|Describe {p} on a {f} day.
Pretend that you are {n}, an expert on {s}, and introduce yourself.|You are a travel guide. Tell me about {p}.
Give {n} advice: {n} is {f} and wants to stop worrying about {s}.|Write a diary entry of {n} on {d}.
Make a shopping list for a dinner with {g} and explain it.|Write a two-week plan to get better at {s}.
Write a text message that reminds {n} of the meeting at {h} o'clock in {p}.|What should I wear to {p} on a cold {d}?
Tell me a joke about {g}.|Write a fairy tale with {n}, {m} and a box of {g}.|Write a review of a film about {s}.
Write an advertisement for {g} sold at {p}.|Hello! Can you help me with {s}?
"""

FOLLOW_UPS = """
Can you make that shorter?|Now explain it to a child.|Give me an example.|Why?|Rewrite that as a list.
Thank you! What else should I know?|Can you say that more formally?|Turn that into a poem.
Summarise your answer in one sentence.|What is the most important point?|Now write it as an email to {n}.
Can you give more detail on the second point?|What would {n} say against that?|How does that relate to {s}?
Please write it again in a {f} tone.|Add an ending.|Translate your answer into French.
Ask me three questions about it.
"""


def parts(text: str) -> list[str]:
    """The entries of a text that stand on lines of their own or between bars."""
    return [entry for line in text.splitlines() for entry in line.split("|") if entry]


def paragraphs(text: str) -> list[str]:
    """The paragraphs of a text, each as one line."""
    return [" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n")]


# The kind of prompt and how often it is drawn. The passages are longer than the rest, and so are not that many.
KINDS = {"subject": 48, "life": 18, "passage": 16, "code": 11, "sum": 7}


class PromptWriter:
    """An endless stream of different user messages; the same seed gives the same stream."""

    def __init__(self, seed: int = 0) -> None:
        self.random = random.Random(seed)
        self.subjects = parts(SUBJECTS)
        self.forms = {
            "subject": parts(FORMS),
            "life": parts(LIFE),
            "passage": parts(PASSAGE_FORMS),
            "code": parts(CODE_FORMS),
            "sum": parts(SUMS),
        }
        self.written: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        while True:
            prompt = self.compose()
            if prompt not in self.written:
                self.written.add(prompt)
                yield prompt

    def follow_up(self) -> str:
        """What a user might say next, whatever the answer was."""
        return self.fill(self.random.choice(parts(FOLLOW_UPS)))

    def compose(self) -> str:
        kind = self.random.choices(list(KINDS), weights=list(KINDS.values()))[0]
        form = self.random.choice(self.forms[kind])
        if kind == "passage":
            form += "\n\n" + self.random.choice(paragraphs(PASSAGES))
        return self.fill(form)

    def fill(self, form: str) -> str:
        """Put words into the places of a form; {s} and {S} are the same subject."""
        pick = self.random.choice
        subject, other = self.random.sample(self.subjects, 2)
        name, second = self.random.sample(parts(NAMES), 2)
        day, next_day = self.random.sample(parts(DAYS), 2)
        return form.format(
            s=subject,
            S=subject[0].upper() + subject[1:],
            t=other,
            n=name,
            m=second,
            d=day,
            e=next_day,
            p=pick(parts(PLACES)),
            g=pick(parts(THINGS)),
            f=pick(parts(MOODS)),
            y=pick(parts(STYLES)),
            l=pick(LANGUAGES),
            c=pick(parts(CODE)) if "{l}" in form or "code" in form else self.random.randint(2, 40),
            a=self.random.randint(20, 900),
            b=self.random.randint(10, 400),
            h=self.random.randint(2, 12),
            x=self.random.randint(15, 480),
        )
