#include "data/dataset.h"

#include "core/error.h"
#include "data/cifar.h"
#include "data/image_folder.h"
#include "data/mnist.h"
#include "data/shapes.h"

namespace heddle {

const char* split_name(Split split) { return split == Split::train ? "train" : "valid"; }

std::unique_ptr<ImageDataset> open_dataset(const std::filesystem::path& path, Split split,
                                           const DatasetOptions& options) {
  if (path.empty()) return render_shapes(split, options);
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  check(std::filesystem::exists(status), path.string(),
        ": expected a data set, found no such path");
  check(std::filesystem::is_directory(status), path.string(),
        ": expected a folder with a data set, found a file; ./run unpack_data unpacks archives of "
        "CIFAR");
  if (holds_cifar10(path)) return open_cifar10(path, split);
  if (holds_cifar100(path)) return open_cifar100(path, split);
  if (holds_mnist(path)) return open_mnist(path, split);
  check(!std::filesystem::is_regular_file(path / "data_batch_1", error) &&
            !std::filesystem::is_regular_file(path / "meta", error),
        path.string(),
        ": expected the binary version of CIFAR (*.bin), found the Python version; ./run "
        "unpack_data converts it");
  for (const char* name : {"cifar-10-batches-bin", "cifar-100-binary"})
    check(!std::filesystem::is_directory(path / name, error), path.string(),
          ": expected a data set, found a folder that contains one: use ", (path / name).string());
  for (const char* name : {"train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz"})
    check(!std::filesystem::exists(path / name, error), path.string(),
          ": expected MNIST's files, found them compressed; ./run unpack_data unpacks them");
  return open_image_folder(path, split, options.hold_out);
}

}  // namespace heddle
