"""Handwriting-like digits made from a seed, so that training needs no download: the shape and scale of MNIST."""

import numpy

# Each digit as strokes on a 0..1 square: polylines of (x, y), y down.
_STROKES = {
    0: [[(.5, .1), (.8, .3), (.8, .7), (.5, .9), (.2, .7), (.2, .3), (.5, .1)]],
    1: [[(.35, .25), (.55, .1), (.55, .9)]],
    2: [[(.2, .3), (.4, .1), (.7, .15), (.75, .4), (.2, .9), (.8, .9)]],
    3: [[(.2, .15), (.7, .12), (.45, .45), (.8, .65), (.55, .9), (.2, .85)]],
    4: [[(.65, .9), (.65, .1), (.2, .6), (.85, .6)]],
    5: [[(.75, .1), (.3, .1), (.25, .45), (.65, .45), (.8, .7), (.5, .9), (.2, .85)]],
    6: [[(.7, .1), (.35, .4), (.2, .7), (.45, .9), (.75, .75), (.65, .55), (.25, .6)]],
    7: [[(.2, .1), (.8, .1), (.45, .9)]],
    8: [[(.5, .1), (.75, .28), (.5, .47), (.25, .28), (.5, .1)], [(.5, .47), (.8, .7), (.5, .9), (.2, .7), (.5, .47)]],
    9: [[(.75, .35), (.5, .5), (.25, .3), (.5, .1), (.75, .3), (.7, .6), (.5, .9)]],
}


def make_digits(count, seed):
    """Images float32 (count, 1, 28, 28) in 0..1 and labels int64 (count,), each drawn with its own slant, scale, place
    and stroke width."""
    random = numpy.random.default_rng(seed)
    labels = random.integers(0, 10, count)
    grid_y, grid_x = numpy.mgrid[0:28, 0:28].astype(numpy.float32)
    images = numpy.zeros((count, 28, 28), numpy.float32)
    for digit, strokes in _STROKES.items():
        rows = numpy.nonzero(labels == digit)[0]
        if not len(rows):
            continue
        many = len(rows)
        scale = random.uniform(16, 21, (many, 2)).astype(numpy.float32)
        slant = random.uniform(-.25, .25, many).astype(numpy.float32)
        place = random.uniform(3, 8, (many, 2)).astype(numpy.float32)
        width = random.uniform(.8, 1.6, many).astype(numpy.float32)
        nearest = numpy.full((many, 28, 28), 1e9, numpy.float32)
        for line in strokes:
            points = numpy.array(line, numpy.float32)[None] + random.normal(0, .02,
                                                                            (many, len(line), 2)).astype(numpy.float32)
            x = (points[..., 0] + slant[:, None] * (.5 - points[..., 1])) * scale[:, :1] + place[:, :1]
            y = points[..., 1] * scale[:, 1:] + place[:, 1:]
            for start in range(len(line) - 1):
                ax, ay, bx, by = (v[:, None, None]
                                  for v in (x[:, start], y[:, start], x[:, start + 1], y[:, start + 1]))
                length = (bx - ax) ** 2 + (by - ay) ** 2 + 1e-6
                along = numpy.clip(((grid_x - ax) * (bx - ax) + (grid_y - ay) * (by - ay)) / length, 0, 1)
                distance = numpy.hypot(grid_x - ax - along * (bx - ax), grid_y - ay - along * (by - ay))
                nearest = numpy.minimum(nearest, distance)
        images[rows] = numpy.clip(1.5 - nearest / width[:, None, None], 0, 1)
    images += random.normal(0, .05, images.shape).astype(numpy.float32)
    return numpy.clip(images, 0, 1)[:, None], labels.astype(numpy.int64)
