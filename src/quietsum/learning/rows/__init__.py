"""What a training is given: records by number, at most k of each person, in any form that people hold them in."""
