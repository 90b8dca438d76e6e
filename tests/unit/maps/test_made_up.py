"""Made-up pictures of odd sizes."""

import pytest

from isoproto.maps.base import made_up_pictures


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 1, 1), (1, 1, 9), (3, 5, 1)])
def test_pictures_of_one_pixel_differ_as_all_others_do(shape):
    assert made_up_pictures(shape, count=50).float().std() > 20
