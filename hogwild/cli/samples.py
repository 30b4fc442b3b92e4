"""Sample data of `hogwild init`: small, invented, in the formats of the data sets it stands for.

Made by formulas when they are asked for, always the same bytes: so the tree holds no binary files, and every sample can
be read here instead of being believed. Only `digits_network` needs numpy."""

import gzip
import io
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from hogwild.version import PACKAGE

Files = dict[str, bytes]  # path below samples/ -> content

# Ten pictures of 7 rows each, as columns of 8 bits, the top row first: a digital font, and clothes from Fashion-MNIST's
# list (T-shirt, trousers, pullover, dress, coat, sandal, shirt, sneaker, bag, boot).
DIGITS = "3e5149453e 00427f4000 4261514946 2141454b31 1814127f10 2745454539 3c4a494930 0171090503 3649494936 064949291e"
CLOTHES = (
    "03033e3f3e0303 007f7f037f7f00 3e033f3e3f033e 40707f7e7f7040 1e677f007f671e 4850706050487c 047e7b067b7e04 "
    "78787870606060 787e7979797e78 7f7f7f7f707060"
)
SIDE, DOT = 28, 3  # pixels of a picture, and of one dot in it


def pictures_in_idx(folder: str, glyphs: str, draw: random.Random) -> Files:
    """Return four files in MNIST's format, of ten drawings: each somewhere in its picture, in a grey, with noise."""
    shapes = [bytes.fromhex(glyph) for glyph in glyphs.split()]
    files = {}
    for part, count in (("train", 500), ("t10k", 100)):
        labels = bytes(number % len(shapes) for number in range(count))
        pixels = b"".join(_picture(shapes[label], draw) for label in labels)
        files[f"{folder}/{part}-images-idx3-ubyte.gz"] = _idx(pixels, count, SIDE, SIDE)
        files[f"{folder}/{part}-labels-idx1-ubyte.gz"] = _idx(labels, count)
    return files


def _picture(shape: bytes, draw: random.Random) -> bytes:
    canvas, grey = bytearray(SIDE * SIDE), bytes([150 + int(100 * draw.random())]) * DOT
    left, top = (4 + draw.randrange(5) for _ in range(2))
    for column, bits in enumerate(shape):
        for row in (row for row in range(7) if bits >> row & 1):
            for line in range(top + DOT * row, top + DOT * (row + 1)):
                start = min(line, SIDE - 1) * SIDE + min(left + DOT * column, SIDE - DOT)
                canvas[start : start + DOT] = grey
    for _ in range(15):
        canvas[draw.randrange(len(canvas))] = draw.randrange(256)
    return bytes(canvas)


def _idx(values: bytes, *shape: int) -> bytes:
    head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    return gzip.compress(head + values, mtime=0)


def folders_of_pictures(draw: random.Random) -> Files:
    """Return a folder for each of three patterns, with 40 PNG files of it in two colours."""
    patterns: dict[str, Callable[[int, int], int]] = {
        "across": lambda x, y: y // 3 % 2,
        "checked": lambda x, y: (x // 3 + y // 3) % 2,
        "upright": lambda x, y: x // 3 % 2,
    }
    files = {}
    for name, pattern in patterns.items():
        for number in range(40):
            colours = [bytes(draw.randrange(low, low + 128) for _ in range(3)) for low in (0, 128)]
            left, top = draw.randrange(6), draw.randrange(6)
            rows = (b"".join(colours[pattern(left + x, top + y)] for x in range(16)) for y in range(16))
            files[f"pictures/{name}/{number:02}.png"] = _png(16, 16, rows)
    return files


def _png(width: int, height: int, rows: Iterable[bytes]) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits, RGB
    body = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def arrays(draw: random.Random) -> Files:
    """Return data.npz, as numpy.savez writes it: x (600, 20) float32, three clouds of points; y (600,) int64."""
    centres = [[draw.gauss(0, 1) for _ in range(20)] for _ in range(3)]
    labels = [draw.randrange(3) for _ in range(600)]
    points = [draw.gauss(centre, 1.5) for label in labels for centre in centres[label]]
    x, y = struct.pack(f"<{len(points)}f", *points), struct.pack(f"<{len(labels)}q", *labels)
    return {"data.npz": _zip({"x.npy": _npy("<f4", (600, 20), x), "y.npy": _npy("<i8", (600,), y)})}


def _npy(kind: str, shape: tuple[int, ...], content: bytes) -> bytes:
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + content


def _zip(files: Files) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return written.getvalue()


# ---- rows, ratings, triples -----------------------------------------------------------------------------------------


def _lines(lines: Iterable[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def reviews(draw: random.Random) -> Files:
    """Return bags of words in libsvm format. Words 1 to 30 are mostly in reviews of label +1, 31 to 60 in those of -1,
    and 61 to 300 in any."""

    def review() -> str:
        label = draw.choice((1, -1))
        told = [draw.randrange(30) + (1 if (draw.random() < 0.8) == (label > 0) else 31) for _ in range(4)]
        words = sorted({*told, *(61 + int(240 * draw.random() ** 2) for _ in range(10))})
        return f"{label:+d} " + " ".join(f"{word}:{draw.choice((1, 1, 2))}" for word in words)

    return {f"reviews_{part}.svm": _lines(review() for _ in range(n)) for part, n in (("train", 600), ("test", 200))}


def pairs(draw: random.Random) -> Files:
    """Return rows of yes-or-no features in libsvm format, whose label is +1 where two of them agree: both of 1 to 8 and
    of 9 to 16 one is set, and both are even or both odd. No feature alone tells anything; 17 to 40 are noise."""

    def row() -> str:
        first, second = 1 + draw.randrange(8), 9 + draw.randrange(8)
        label = 1 if (first - second) % 2 == 0 else -1
        noise = sorted(draw.sample(range(17, 41), 3))
        return f"{label:+d} " + " ".join(f"{feature}:1" for feature in (first, second, *noise))

    return {f"pairs_{part}.svm": _lines(row() for _ in range(n)) for part, n in (("train", 1500), ("test", 400))}


def _tastes(users: int, items: int, draw: random.Random) -> Callable[[int, int], float]:
    """Return how much a user likes an item: mean 0, deviation about 1."""
    people, things = ([[draw.gauss(0, 1) for _ in range(2)] for _ in range(count)] for count in (users, items))
    quality = [draw.gauss(0, 0.6) for _ in range(items)]
    return lambda user, item: quality[item] + 0.6 * sum(a * b for a, b in zip(people[user], things[item], strict=True))


def ratings(draw: random.Random) -> Files:
    """Return ratings from 0.5 to 5 of 60 films by 200 people, with the header of MovieLens."""
    taste = _tastes(200, 60, draw)
    seen = [(user, item) for user in range(200) for item in draw.sample(range(60), 25)]
    rated = ((user, item, round(2 * (3.2 + taste(user, item) + draw.gauss(0, 0.3))) / 2) for user, item in seen)
    lines = (f"{user + 1},{item + 101},{min(max(rating, 0.5), 5)}" for user, item, rating in rated)
    return {"ratings.csv": _lines(["userId,movieId,rating", *lines])}


def jokes(draw: random.Random) -> Files:
    """Return jester-data's table, zipped: for each person the number of ratings, then one of each of 100 jokes from -10
    to 10, or 99."""
    taste = _tastes(150, 100, draw)

    def line(person: int) -> str:
        mood = draw.gauss(0, 1)
        liked = [
            min(max(round(3 * (taste(person, joke) + mood + draw.gauss(0, 0.4)), 2), -10), 10) for joke in range(100)
        ]
        told = [value if draw.random() < 0.5 else 99 for value in liked]
        return ",".join(map(str, [sum(value != 99 for value in told), *told]))

    return {"jokes.zip": _zip({"jokes.csv": _lines(map(line, range(150)))})}


def plays(draw: random.Random) -> Files:
    """Return what 200 people have played, a user and a song a line: mostly songs of the two bands that they like."""
    found = []
    for user in range(200):
        bands = draw.sample(range(6), 2)
        heard = {
            10 * (draw.choice(bands) if draw.random() < 0.9 else draw.randrange(6)) + draw.randrange(10)
            for _ in range(18)
        }
        found += [f"{user + 1},{song + 1}" for song in sorted(heard)]
    return {"plays.csv": _lines(["user,item", *found])}


def clicks(draw: random.Random) -> Files:
    """Return 3,000 views of 20 advertisements on 12 sites, and whether each was clicked: mostly where the site and the
    advertisement have the same of two topics. Neither alone tells anything; users and hours are noise."""

    def view() -> str:
        site, ad = draw.randrange(12), draw.randrange(20)
        is_click = ((site + ad) % 2 == 0) == (draw.random() < 0.95)
        return f"{is_click:d},site-{site},ad-{ad},user-{draw.randrange(400)},{draw.random() * 24:.1f}"

    return {"clicks.csv": _lines(["clicked,site,ad,user,hour", *(view() for _ in range(3000))])}


def family(draw: random.Random) -> Files:
    """Return triples of people, cities, countries and languages. Who lives in a city is a citizen of its country and
    speaks its language; a part of these conclusions is held back."""
    names = _invented("brn dfk lst mrv", draw)
    countries, cities, people = ([next(names) for _ in range(count)] for count in (6, 18, 120))
    triples, conclusions = [], []
    for place, city in enumerate(cities):
        triples.append((city, "is_in", countries[place % 6]))
    for country in countries:
        triples.append((country, "speaks", f"{country}ish"))
    for person in people:
        place = draw.randrange(18)
        triples.append((person, "lives_in", cities[place]))
        conclusions += [
            (person, "is_citizen_of", countries[place % 6]),
            (person, "talks", f"{countries[place % 6]}ish"),
        ]
    draw.shuffle(conclusions)
    parts = {"train": triples + conclusions[40:], "valid": conclusions[:40]}
    return {f"family_{part}.txt": _lines("\t".join(triple) for triple in some) for part, some in parts.items()}


def _invented(consonants: str, draw: random.Random, vowels: str = "aeiou") -> Iterator[str]:
    """Yield different names, of syllables that begin with these consonants."""
    seen = set()
    while True:
        name = "".join(draw.choice(consonants) + draw.choice(vowels) for _ in range(draw.choice((2, 3, 3))))
        if name not in seen:
            seen.add(name)
            yield name.capitalize()


# ---- texts ----------------------------------------------------------------------------------------------------------

# Whoever speaks: of which things, what they do, and where.
TOPICS = {
    "FARMER": ("cow hen pig goat horse sheep", "eats chews follows", "barn field stable meadow"),
    "CAPTAIN": ("ship sailor whale pirate storm wave", "meets carries fears", "harbour ocean island bay"),
    "COOK": ("bread soup cheese butter cake onion", "warms covers spices", "kitchen oven pantry cellar"),
    "KING": ("crown knight sword prince castle throne", "guards serves wins", "court tower kingdom hall"),
    "DOCTOR": ("fever nurse medicine patient bandage wound", "heals eases worsens", "hospital ward surgery clinic"),
    "POET": ("song verse moon flower dream rhyme", "praises recalls becomes", "garden night spring silence"),
}


def _sentence(topic: str, draw: random.Random) -> str:
    things, verbs, places = (draw.choice(words.split()) for words in TOPICS[topic])
    other = draw.choice(TOPICS[topic][0].split())
    return f"the {things} {verbs} the {other} {draw.choice(('in', 'near', 'by'))} the {places}"


def sentences(draw: random.Random) -> Files:
    """Return 2,000 sentences about six topics, one a line; pairs of words are alike if they belong to one topic."""
    return {"sentences.txt": _lines(_sentence(draw.choice([*TOPICS]), draw) for _ in range(2000))} | word_pairs()


def words_in_a_line(draw: random.Random) -> Files:
    """Return 2,000 sentences about six topics, in the form of text8.zip: one line without a stop; pairs of words are
    alike if they belong to one topic."""
    text = sentences(draw)["sentences.txt"].decode().split()
    return {"words.zip": _zip({"words": " ".join(text).encode()})} | word_pairs()


def word_pairs() -> Files:
    """Return pairs of words with a similarity, as in WordSimilarity-353: high where they belong to one topic."""
    draw = random.Random("word pairs")  # the same in both samples
    words = [(topic, word) for topic, (things, _, places) in TOPICS.items() for word in f"{things} {places}".split()]
    pairs = [draw.sample(words, 2) for _ in range(600)]
    alike, other = (
        [pair for pair in pairs if (pair[0][0] == pair[1][0]) == is_alike][:60] for is_alike in (True, False)
    )
    scored = [(pair, 7 + 3 * draw.random()) for pair in alike] + [(pair, 3 * draw.random()) for pair in other]
    return {"word_pairs.tsv": _lines(f"{one[1]}\t{two[1]}\t{score:.2f}" for (one, two), score in scored)}


def play(draw: random.Random) -> Files:
    """Return 500 speeches of six people, in the form of tinyshakespeare: a line `NAME:`, then what is said."""

    def speech() -> str:
        speaker = draw.choice([*TOPICS])
        said = [_sentence(speaker, draw).capitalize() + draw.choice(".,!") for _ in range(draw.choice((2, 3, 4)))]
        return "\n".join([f"{speaker}:", *said, ""])

    return {"play.txt": _lines(speech() for _ in range(500))}


def names(draw: random.Random) -> Files:
    """Return a file of 200 names for each of three languages that nobody speaks."""
    sounds = {"Luvian": ("lmnvr", "aeiu"), "Krotic": ("ktgrd", "aou"), "Sushen": ("sztnh", "eiu")}
    found = {name: _invented(*letters[:1], draw, letters[1]) for name, letters in sounds.items()}
    return {f"names/{name}.txt": _lines(sorted(next(each) for _ in range(200))) for name, each in found.items()}


# ---- a network ------------------------------------------------------------------------------------------------------


def digits_network(draw: random.Random) -> Files:
    """Return digits.safetensors, this network trained on the bundled digits 0 to 4 only, by 50 steps of plain gradient
    descent."""
    import numpy as np
    from safetensors.numpy import save

    with np.load(PACKAGE / "data" / "digits.npz") as bundled:
        few = bundled["y"] < 5
        x, y = bundled["x"][few][::2].astype(np.float32) / 16, bundled["y"][few][::2]
    spread = [[draw.uniform(-0.125, 0.125) for _ in range(64)] for _ in range(128)]
    first, second = np.array(spread, np.float32), np.zeros((10, 128), np.float32)
    shift, bias = np.zeros(128, np.float32), np.zeros(10, np.float32)
    for _ in range(50):
        seen = np.maximum(x @ first.T + shift, 0)
        found = np.exp(seen @ second.T + bias)
        wrong = (found / found.sum(1, keepdims=True) - np.eye(10, dtype=np.float32)[y]) / len(x)
        back = (wrong @ second) * (seen > 0)
        second -= wrong.T @ seen
        bias -= wrong.sum(0)
        first -= back.T @ x
        shift -= back.sum(0)
    layers = {"layers.0.weight": first, "layers.0.bias": shift, "layers.3.weight": second, "layers.3.bias": bias}
    return {"digits.safetensors": save(layers)}


SAMPLES: Mapping[str, Callable[[random.Random], Files]] = {
    "digits": partial(pictures_in_idx, "digits", DIGITS),
    "clothes": partial(pictures_in_idx, "clothes", CLOTHES),
    "reviews": reviews,
    "pairs": pairs,
    "ratings": ratings,
    "jokes": jokes,
    "plays": plays,
    "clicks": clicks,
    "sentences": sentences,
    "words": words_in_a_line,
    "family": family,
    "play": play,
    "names": names,
    "arrays": arrays,
    "pictures": folders_of_pictures,
    "network": digits_network,
}


def about_sample(name: str) -> str:
    """Return a sentence: the docstring of the sample's function."""
    made = SAMPLES[name]
    words = getattr(made, "func", made).__doc__ or ""
    return " ".join(words.split()).removeprefix("Return ")


def sample_files(name: str) -> Files:
    """Return the files of a sample."""
    return SAMPLES[name](random.Random(name))
