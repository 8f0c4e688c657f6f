"""Where sentences end: the same for ever, because citations name them by number."""
# ruff: noqa: RUF001 - quotes, dashes and full-width marks are what is tested

from itertools import pairwise
from time import process_time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ingest.sentences import spans
from tests.build import HOSTILE, steady

_PARTS = (
    *HOSTILE, "Robots walk", "walk", "Fig.", "e.g.", "i.e.,", "Dr.", "A.", "No.", "etc.", "3.14",
    "...", "…", "?", "!", ".", " ", "https://a.b/c.", "ros2.yaml",
)  # fmt: skip
texts = st.one_of(
    st.lists(st.sampled_from(_PARTS), max_size=25).map("".join),
    st.lists(st.sampled_from(_PARTS), max_size=25).map(" ".join),
    st.text(max_size=60),
)


def split(text: str) -> list[str]:
    return [text[start:end] for start, end in spans(text)]


@pytest.mark.parametrize(
    "sentences",
    [
        ["Robots fall.", "They stand up again."],
        ["Is it safe?", "Yes!", "It is."],
        ["Really?!", "Yes."],
        ["A last one without its stop"],
        # Abbreviations
        ["It has sensors, e.g. cameras, i.e. eyes.", "It sees."],
        ["Use e.g. Kalman filters.", "They help."],
        ["Robots vs. humans: a draw.", "Nobody fell."],
        ["It weighs approx. half.", "Good."],
        ["Prof. Dr. Smith built it.", "It walked."],
        ["As in Smith et al. 2020 it fell.", "It rose."],
        # References by number
        ["See Fig. 3 for the loop.", "It closes."],
        ["See Figs. 3 and 4 and Eq. 5.", "They differ."],
        ["See Secs. 2 and 3 and Refs. 7 and 8.", "They differ."],
        ["The angle is in Sec. 2.1.", "It is small."],
        ["Compare No. 5 with No. 6.", "Both fell."],
        # Decimals, versions, money
        ["It runs at 3.14 m/s.", "That is fast."],
        ["It needs 1,000.5 watts.", "It gets warm."],
        ["ROS 2.0 is out.", "Use it."],
        ["It costs $3.50.", "That is cheap."],
        # Addresses and files
        ["See https://example.org/a.b?c=d.", "Then go on."],
        ["Edit ros2.yaml.", "Then run it."],
        ["Write to a.b@example.org.", "Then wait."],
        # Ellipses
        ["It slowed down... and fell.", "It rose."],
        ["It slowed down … and fell.", "It rose."],
        # Quotes and brackets
        ['It said "Stop."', "Then it stopped."],
        ["It said “Stop!”", "Then it stopped."],
        ["“Stop.”", "“Go.”"],
        ["It fell. (It was pushed.)", "It rose."],
        # Initials
        ["J. R. Smith built it.", "It walked."],
        ["K. Čapek named robots.", "He was a writer."],
        # An identifier begins a sentence with a small letter
        ["It is a robot.", "ros2_control runs it.", "It walks."],
    ],
    ids=" / ".join,
)
def test_sentences(sentences: list[str]) -> None:
    expected = [part for sentence in sentences for part in _bracketed(sentence)]
    assert split(" ".join(sentences)) == expected


def _bracketed(sentence: str) -> list[str]:
    """A sentence in brackets is one of its own."""
    before, bracket, after = sentence.partition(" (")
    return [before, bracket.strip() + after] if bracket else [sentence]


@pytest.mark.parametrize(
    "sentences",
    [
        # Abbreviations, mid-sentence and at the end
        ["Many sensors fail, e.g. LiDAR in fog.", "Cameras do too."],
        ["Use a gateway, i.e. The Box, for this.", "It is cheap."],
        ["It reads logs, metrics, traces, etc. and stores them.", "Nothing is lost."],
        ["It reads logs, metrics, etc.", "Robots do the rest.", "Nobody helps."],
        ["It has arms, legs, etc.", "The head is missing.", "Sad."],
        ["Smith et al. showed this.", "Others did not."],
        ["This follows Smith et al. [12] and Jones.", "It is old."],
        ["The bound is due to Kim et al. (2019).", "It is tight."],
        ["It was shown by Smith et al.", "The result holds.", "Good."],
        ["It was built by Acme Inc. in 2019.", "It still runs."],
        ["It was built by Acme Inc.", "The firm is gone.", "It still runs."],
        ["Foo Corp. engineers found the bug.", "They fixed it."],
        ["The max. temperature is 80 °C.", "Do not exceed it."],
        ["The temp. sensor failed.", "Replace it."],
        ["The dept. of physics closed.", "It was old."],
        ["TCP vs. UDP is an old debate.", "Both work."],
        ["It takes approx. 5 ms.", "That is fine."],
        ["Sort by key (asc. or desc.) before the join.", "It is faster."],
        ["The mfg. process is slow.", "It is exact."],
        ["Connect the 5 V pin, resp. the 3.3 V pin.", "Then power it."],
        ["Set the flag (cf. Table 2).", "Then reboot."],
        ["It was published in Proc. IEEE in 1998.", "It is cited often."],
        ["The meeting is on Jan. 5 in Berlin.", "Be there."],
        ["It shipped in Dec. 2020.", "It sold out."],
        ["Motors, sensors (encoders, IMUs, etc.) and cables are included.", "Batteries are not."],
        ["All parts (motors, cables, etc.) Acme ships are tested.", "They last."],
        # Times and countries
        ["The job runs at 3 a.m. on Sundays.", "It takes an hour."],
        ["The job runs at 3 a.m.", "It takes an hour."],
        ["The job starts at 10 p.m.", "Robots need no sleep."],
        ["The job starts at 9 a.m. Monday.", "It ends late."],
        ["The window opens at 8 p.m. UTC.", "It closes at nine."],
        ["The plant is in the U.S. and runs day and night.", "It is loud."],
        ["The plant is in the U.S.", "It runs day and night."],
        ["The U.S. Army tested it.", "It failed."],
        ["He holds a Ph.D. in robotics.", "He teaches."],
        ["He holds a Ph.D.", "He teaches."],
        ["The U.S. Department of Energy paid.", "It was costly."],
        # References by number
        ["See Fig. 3a and Eq. (2).", "They agree."],
        ["As Eq. (4) and Eqs. (5)–(7) show, it converges.", "The rate is linear."],
        ["The proof is in App. B.", "It is short."],
        ["Open the app.", "Then log in."],
        ["Use Alg. 1 with Thm. 2.", "It is optimal."],
        ["See Sec. 4.2.1 for more.", "It is long."],
        ["It is on pp. 12–14 of vol. 3.", "Read it."],
        ["See p. 7.", "It is there."],
        ["The answer is no.", "Robots cannot lie."],
        ["Is it open?", "No.", "It is closed."],
        ["Part no. 17 is worn.", "Replace it."],
        ["Figs. S1 and S2 show the setup.", "It is simple."],
        ["See Fig.\u00a03.", "It is clear."],
        ["It waits 5 sec.", "Then it retries."],
        ["It waits 5 sec. before a retry.", "Then it stops."],
        ["According to Art. 17 GDPR it must be deleted.", "It was."],
        ["Ref. 12 is wrong.", "Ref. 13 is right."],
        # Initials and labels
        ["The idea is by D. E. Knuth.", "He wrote TeX."],
        ["John F. Kennedy said so.", "He meant the moon."],
        ["A. Turing asked whether machines think.", "They do not."],
        ["Let x be in X.", "The map is continuous."],
        ["It is the inverse of A.", "It exists."],
        ["The kernel is written in C.", "Drivers are too."],
        ["Switch to Plan B.", "Robots wait."],
        ["The norm is y = x.", "Vectors add."],
        ["Choose option a.", "Press enter."],
        ["Multiply by k.", "Then add n."],
        ["It was shown by E. W. Dijkstra and C. A. R. Hoare.", "Both won prizes."],
        # Numbers, versions, units
        ["It weighs 3.5 kg.", "It lifts 7.25 kg."],
        ["Version 2.4.1 fixes it.", "Upgrade to v2.5."],
        ["We use Python 3.11.", "Python 3.8 is too old."],
        ["The value is 5.", "The error is 0.1."],
        ["It listens on 10.0.0.1:8080.", "Nothing else does."],
        ["The threshold is .5 by default.", "Raise it."],
        ["It starts at v1.0.0-rc.1.", "Then it moves."],
        ["The limit is 100 km/h.", "Few obey."],
        ["It holds 2 GB.", "4 GB is better."],
        ["It costs €5.99.", "Tax is extra."],
        ["It ran for 5 min. without fault.", "Then it broke."],
        ["The bar is 6 ft. long.", "It bends."],
        ["The lag is 20 ms.", "Users notice."],
        ["The year was 1999.", "Robots were rare."],
        # Addresses, files, code
        ["Visit www.example.com.", "Sign in there."],
        ["See https://docs.example.org/v2.1/index.html#a.b for details.", "They help."],
        ["Open config.yaml and README.md.", "Change both."],
        ["Run ./install.sh.", "Then reboot."],
        ["Call os.path.join().", "It returns a str."],
        ["Use `foo. Bar` as the key.", "It is odd."],
        ["Node.js and ASP.NET are supported.", ".NET 8 is needed."],
        ["The file ends in .py.", "Rename it."],
        ["Mail bob@example.com!", "He answers."],
        ["Is it http://a.b/?q=1?", "Yes."],
        ["Set x = foo.bar.", "Then call baz()."],
        ["Edit /etc/hosts.", "/etc/fstab is next."],
        # Ellipses
        ["It waited…", "Then it moved."],
        ["It waited...", "Then it moved."],
        ["It waited … but nothing came.", "It left."],
        ["The items are 1, 2, ..., 10.", "Each is unique."],
        ["The items x1, x2, … Xn are sorted.", "Each is unique."],
        ["It said: “I think ... therefore I am.”", "It was wrong."],
        ["He wrote: it walks [...] and it falls.", "It rose."],
        ["It waited . . . and waited.", "It left."],
        ["It waited....", "Then it left."],
        # Quotations
        ["“Is it safe?” she asked.", "It was."],
        ['"Stop!" he cried.', "It stopped."],
        ['The log says "Done."', "Nothing follows."],
        ["„Halt!“ rief er.", "Der Roboter hielt an."],
        ["Er sagte „Es geht.“", "Dann ging es."],
        ["«\u00a0Il tombe.\u00a0»", "Puis il se relève."],
        ["Est-ce sûr\u00a0?", "Oui."],
        ["»Halt!« rief sie.", "Es hielt."],
        ["He wrote “Do not touch. Ever.” on the box.", "Nobody did."],
        ['The sign says "Stop. Look. Listen." in red.', "It is old."],
        ["It said ‘Stop.’", "Then it stopped."],
        ["It is called “robot.”", "The word is Czech."],
        ["Press 'OK'.", "Wait."],
        # Brackets
        ["(It fell.)", "It rose."],
        ["The arm (see Fig. 2) moves.", "It is fast."],
        ["The robot (it was pushed. Twice.) fell.", "It rose."],
        ["He teaches (he was an engineer.) at the school.", "It is far."],
        ["It is safe (really!).", "Use it."],
        ["It is cheap (!) and fast (?) too.", "Buy it."],
        ["It fell (twice).", "(See the video.)", "It rose."],
        ["The call f(x).", "Returns y."],
        ["[It was late.]", "They left."],
        # Marks of sources behind the stop
        ["It was shown before.[1]", "It holds."],
        ["It was shown before.[1,2]", "It holds."],
        ["It was shown before.[3–5]", "It holds."],
        ["It was shown before.¹²", "It holds."],
        ["It was shown before. [7]", "It holds."],
        ["It was shown before [7].", "[8] shows more."],
        ["It was shown.[^2]", "It holds."],
        ["It is true.†", "It holds."],
        # Identifiers begin a sentence with a small letter
        ["The array is copied.", "numpy is fast."],
        ["It needs a package manager.", "pip installs the rest."],
        ["We support phones.", "iOS comes first."],
        ["It uses a bus.", "ros2_control talks to it."],
        ["It is a loop.", "eBPF code runs in it."],
        ["Why is it slow?", "numpy copies the array."],
        ["Yahoo! was a portal.", "It closed."],
        ["Call it now.", "f(x) returns zero."],
        ["It is done.", "x is zero."],
        ["The list is full.", "malloc returns null."],
        ["It is in PNG.", "ffmpeg converts it."],
        ["The assoc. memory is small.", "It is fast."],
        ["Read it twice.", "sudo is needed."],
        # Enumerations
        ["1. Open the box.", "2. Close it."],
        ["a. Open the box.", "b. Close it."],
        ["Steps: 1. Open the box.", "2. Close it."],
        ["2.1. Overview of the system.", "It is large."],
        ["iv. The fourth item.", "It is the last."],
        ["There are two: 1. the arm; 2. the leg.", "Both move."],
        ["Do this: a) open it; b) close it.", "Done."],
        # Cheers behind the stop
        ["It works! 🎉", "Then it broke."],
        ["It works.🎉", "Then it broke."],
        ["It works. 👩\u200d🚀👍🏽", "We fly."],
        ["Nice. :)", "Next one."],
        ["It is done.", "⚠\ufe0f Do not touch it."],
        ["It is 🔥.", "Use it."],
        # Abbreviations with a space inside
        ["See Dr.\u00a0Smith.", "He knows."],
        ["Das ist z.\u00a0B. ein Roboter.", "Er läuft."],
        ["Das ist z. B. ein Roboter.", "Er läuft."],
        ["Use it, i. e. The arm.", "It moves."],
        ["It ran until 5 p. m. and stopped.", "It was late."],
        # Several at once
        ["The idea came from the paper (Smith et al. 2020) and worked.", "It is cited."],
        ["The U.N. and the E.U. agreed.", "Nobody else did."],
        ["It is made by Foo Ltd.", "However, it is sold by Bar Co. in Asia."],
        ["He moved to Washington, D.C.", "He likes it."],
        ["The battery lasts 8 hrs.", "Charge it at night."],
        ["The cable is 3 ft.", "Longer ones are sold."],
        ["It has a range of 5 km.", "25 km is the record."],
        ["Compare Refs. [3] and [4].", "They differ."],
        ["It is in Tab. 3.", "Open a new tab.", "Click it."],
        ["It runs on No. 5 fuel.", "It smells."],
        ["We use the method of J. von Neumann.", "It works."],
        ["She is Dr. Maria K. Lopez of MIT.", "She leads it."],
        ["Solve for the vector b.", "The matrix A is known."],
        ["Set the mode to X.", "It is the default."],
        ["It returns true.", "false is returned otherwise."],
        ["It is deprecated since v3.", "v4 removes it."],
        ["Use git.", "git rebase rewrites the history."],
        ['It prints "Hello, world."', "main() then returns."],
        ["Does it work?", "(Yes.)", "Good."],
        ["Was it “safe”?", "No!", "It was not."],
        ["The command `rm -rf .` is dangerous.", "Never run it."],
        ["Run `make`.", "Then test."],
        ["Set `a.b. C` to 1.", "Restart."],
        ["The unit is m/s.", "SI units are used."],
        ["It was the end of World War II.", "Robots were rare."],
        ["Go to step 3.", "Repeat it."],
        ["We thank Prof. A. B. Miller Jr. for help.", "He knows."],
        ["The library is at St. Mary St. in London.", "It is old."],
        ["It has 4 legs, 2 arms, etc., and a head.", "It walks."],
        ["The ratio is 3:1.", "It varies."],
        ["It supports C.", "C++ is next.", "C# is not."],
        ["The I/O is slow.", "A.I. needs more."],
        ["Wait 10 s.", "Then wait 5 s more."],
        ["Its mass is 5 g.", "It floats."],
        ["The voltage is 5 V.", "The current is 2 A.", "Both are low."],
        ["Heat it to 300 K.", "Wait."],
        ["The angle is 90°.", "Turn left."],
        ["It gained 5%.", "3% were lost."],
        ["Cats, dogs, et al. are animals.", "So are we."],
        ["It works as follows: “Read. Think. Act.”", "Then it loops."],
        ["She asked, “Why?”", "He did not know."],
        ["See the docs (e.g. Sec. 3).", "They help."],
        ["This holds for n = 1, 2, 3, ….", "It is proved."],
        ["The so-called ‘A.I. winter’ came.", "It passed."],
        ["— It fell.", "— It rose."],
        ["• Open it.", "• Close it."],
        ["Save as draft.txt.", "draft.txt is kept."],
        ["The type is std::string.", "std::move moves it."],
        ["Use -v.", "--help prints more."],
        ["It ends at 5 p.m. sharp.", "Nobody stays."],
        ["It was born in 1920 (b. 1920, d. 1992).", "It lived long."],
        ["The temperature is 5 °C.", "At night it is less."],
        ["In op. cit. p. 5 he says so.", "It is true."],
        ["The arm moves ca. 3 mm.", "It is precise."],
        ["Vgl. Abb. 3 und Kap. 2.", "Der Roboter läuft."],
        ["It is ready.", "Really..."],
        # German, French, capitals behind abbreviations
        ["It costs 5 EUR incl. VAT.", "It is cheap."],
        ["All figures are approx.", "The rest is exact."],
        ["The max. CPU load is 80%.", "The min. RAM is 2 GB."],
        ["Set it to max.", "The fan starts."],
        ["It runs at 10 p.m. EST.", "Robots sleep."],
        ["He moved to the U.K.", "Others stayed."],
        ["It is made by Foo Inc.", "Nobody else makes it."],
        ["The shop is on Ocean Dr.", "They sell robots."],
        ["Mr. A and Mr. B met.", "They agreed."],
        ["It was filed with the SEC.", "Robots cannot file."],
        ["The best answer is C.", "Robots agree."],
        ["The route ends at B.", "Cars turn there."],
        ["The physicist E. Fermi asked where they are.", "Nobody knows."],
        ["It is due to J. Smith.", "He is old."],
        ["J.-P. Sartre wrote it.", "H.-J. Braun read it."],
        ["Er wurde am 3. Oktober gebaut.", "Er lief."],
        ["Das war im 19. Jahrhundert üblich.", "Heute nicht."],
        ["Der 2. Roboter fiel.", "Der 3. blieb stehen."],
        ["Er hat Arme, Beine usw. und läuft.", "Gut."],
        ["Siehe S. 12 und Abs. 3.", "Es steht dort."],
        ["Das kostet 5 Mio. Euro.", "Das ist viel."],
        ["Der sog. Roboter läuft ggf. Treppen hoch.", "Er fällt."],
        ["Il utilise p. ex. Linux.", "C'est libre."],
        ["M. Dupont et Mme. Durand sont là.", "Ils parlent."],
        ["C'était en 50 av. J.-C. en Gaule.", "Ils résistent."],
        ["Il dit : «\u00a0Stop. Il tombe.\u00a0»", "Puis il part."],
        ["Vraiment\u00a0?", "Oui\u00a0!", "Bien."],
        ["Das gilt i. d. R. für alle.", "Nicht immer."],
        ["Das ist u. a. hier so.", "Dort nicht."],
        ["✅ Tests pass.", "❌ The build fails.", "🚀 We ship."],
        ["It broke. ⚠\ufe0f"],
        ["We ship it. 🇩🇪", "Then we rest."],
        ["It works!🚀🚀", "Great."],
        ["Nice! 😀 😀", "Go on."],
        ["I am 5.", "The robot is 7."],
        # Labels, journals, revisions
        ["The robot (R. Daneel) walks.", "It talks."],
        ["We thank colleague J. Smith for help.", "He was kind."],
        ["The author J. Smith and student M. Lee wrote it.", "It sold."],
        ["It uses rev. B of the board.", "Rev. A had a fault."],
        ["It follows Std. 802.11 and Cat. 5.", "Both are old."],
        ["It appeared in Phys. Rev. Lett. in 1998.", "It was short."],
        ["It is in Proc. Natl. Acad. Sci. USA.", "Read it."],
        ["The prev. value is kept.", "The curr. value is lost."],
        ["It ships in Dec.", "Robots like winter."],
        ["It ships on Dec. 5.", "Robots like winter."],
        ["It was shown by Smith et al.", "Robots walk."],
        ["Watch out.", "🚫 Never open it."],
        ["We like it. <3", "Thanks."],
        ["The seat is in row C.", "Robots sit there."],
        ["The result is A.", "Students like it."],
        ["It was written for J. Smith.", "He paid."],
        ["The typ. CPU draws 5 W.", "Few draw more."],
        # Questions and shouts
        ["What?!", "It fell!!", "Help!"],
        ["**Note.**", "It is bold."],
        ["n! grows fast.", "So does 2^n."],
        ["Is n! = 6?", "Yes."],
        ["What does a?b:c mean?", "It is a choice."],
        ["It fell . . .", "Then it rose."],
        # Other scripts
        ["机器人走路。", "它会跌倒。"],
        ["安全吗？", "安全！", "好的。"],
        ["「行きますか？」と聞いた。", "彼は行った。"],
        ["他说：“你好。再见。”", "然后他走了。"],
        ["ROS 2.0 发布了。", "请使用它。"],
        ["これは3.5 kgです。", "重い。"],
        ["真的吗?", "是的!", "好。"],
        ["यह रोबोट है।", "यह चलता है।"],
        ["هل هو آمن؟", "نعم."],
    ],
    ids=" / ".join,
)
def test_hard_sentences(sentences: list[str]) -> None:
    assert split(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["机器人走路。", "它会跌倒。"],
        ["安全吗？", "安全！", "好的。"],
        ["「行きますか？」と聞いた。", "彼は行った。"],
        ["ROS 2.0 发布了。", "请使用它。"],
        ["これは3.5 kgです。", "重い。"],
        ["真的吗?", "是的!", "好。"],
        ["यह रोबोट है।", "यह चलता है।"],
        ["یہ روبوٹ ہے۔", "کیا یہ چلتا ہے؟"],
    ],
    ids=" / ".join,
)
def test_scripts_without_capitals_need_no_space(sentences: list[str]) -> None:
    assert split("".join(sentences)) == sentences


@pytest.mark.parametrize(
    "text",
    [
        "word " * 200_000,
        "x" * 1_000_000,
        "." * 1_000_000,
        ". " * 500_000,
        "." * 999_999 + "x",
        "(" * 1_000_000,
    ],
    ids=["no stop", "one word", "only stops", "spaced stops", "stops and a letter", "only brackets"],
)
def test_a_megabyte_takes_less_than_three_seconds(text: str) -> None:
    before = process_time()
    assert split(text) == [text.rstrip()]
    assert process_time() - before < 3


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_no_text_has_no_sentences(text: str) -> None:
    assert split(text) == []


@steady
@given(texts)
@example("... ... ...")
@example('." ." ."')
@example(".) (. ) .")
def test_spans_are_ordered_and_cover_every_character(text: str) -> None:
    found = list(spans(text))
    assert all(0 <= start < end <= len(text) for start, end in found)
    assert all(before <= after for (_, before), (after, _) in pairwise(found))
    covered = {position for start, end in found for position in range(start, end)}
    assert all(position in covered for position, character in enumerate(text) if not character.isspace())


@steady
@given(texts)
def test_no_sentence_is_blank_or_ends_in_space(text: str) -> None:
    assert all(sentence.strip() and sentence == sentence.rstrip() for sentence in split(text))


@pytest.mark.parametrize("text", [" Robots fall. They rise.", "\nRobots fall.", "It fell. \x1fThen it rose."])
def test_no_sentence_begins_with_space(text: str) -> None:
    assert split(text) == [sentence.strip() for sentence in split(text)]


@steady
@given(texts)
def test_the_same_text_has_the_same_sentences(text: str) -> None:
    assert list(spans(text)) == list(spans(text))


def test_text_before_does_not_change_how_a_sentence_is_cut() -> None:
    """Nothing is learnt from what was seen: a tokenizer that adapts would move old citations."""
    text = "The Qfx. Unit failed. It fell."
    once = split(text)
    for _ in range(50):
        split("The qfx. unit and the Qfx. Unit are one. Qfx. is short.")
    assert split(text) == once
