#include "core/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.h"
#include "core/scalar.h"

namespace heddle {
namespace {

// Closes the descriptor when it goes out of scope.
struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

// Repeats a system call that a signal interrupts.
template <class Call>
auto retrying(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

int open_retrying(const char* path, int flags, mode_t mode = 0) {
  return retrying([&] { return ::open(path, flags | O_CLOEXEC, mode); });
}

// Syncs a file and returns whether it is on the disk. Some file systems cannot sync (EINVAL,
// ENOTSUP): nothing more can be asked of them.
bool sync_descriptor(int fd) {
  return retrying([&] { return ::fsync(fd); }) == 0 || errno == EINVAL || errno == ENOTSUP;
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  Descriptor file{open_retrying(path.c_str(), O_RDONLY | O_NONBLOCK)};
  if (file.fd < 0) {
    const std::string why = concat(path, ": cannot open: ", std::strerror(errno));
    // A path that leads to no file is the caller's mistake; other failures may be temporary.
    check(errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENXIO, why);
    throw Error(why);
  }
  struct stat status {};
  if (::fstat(file.fd, &status) != 0)
    throw Error(concat(path, ": cannot stat: ", std::strerror(errno)));
  check(!S_ISDIR(status.st_mode), path, ": expected a file, found a folder");
  check(S_ISREG(status.st_mode), path, ": expected a regular file, found a device, pipe or socket");
  size_ = status.st_size;
  fd_ = std::exchange(file.fd, -1);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

InputFile::~InputFile() { const Descriptor closed{fd_}; }

void InputFile::read(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t found = retrying([&] { return ::pread(fd_, out.data(), out.size(), offset); });
    if (found < 0) throw Error(concat(path_, ": cannot read: ", std::strerror(errno)));
    check(found > 0, path_, ": expected ", size_, " bytes, as when it was opened, found ", offset,
          ": it was truncated while open");
    out = out.subspan(to_size(found));
    offset += found;
  }
}

std::string read_text_file(const std::string& path) {
  const InputFile file(path);
  std::string text(to_size(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  const std::filesystem::path final_path(path);
  if (!final_path.has_filename()) throw Error(concat(path, ": expected a file name"));
  folder_ = final_path.has_parent_path() ? final_path.parent_path().string() : ".";
  std::error_code none;
  if (is_other(std::filesystem::status(final_path, none)))  // such as /dev/null, or a link to it
    throw Error(concat(path, ": expected a regular file or none, found a device, pipe or socket"));
  static std::atomic<unsigned> counter{0};
  // A process killed earlier may have left a temporary of this name: then the next number is tried.
  do {
    temporary_ = concat(folder_, "/.", final_path.filename().string(), ".tmp-", ::getpid(), "-",
                        counter.fetch_add(1));
    fd_ = open_retrying(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666);
  } while (fd_ < 0 && errno == EEXIST);
  if (fd_ < 0) {
    temporary_.clear();
    fail("cannot write");
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void AtomicFile::fail(const char* action) const {
  throw Error(concat(path_, ": ", action, ": ", std::strerror(errno)));
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = retrying([&] { return ::write(fd_, bytes.data(), bytes.size()); });
    if (written < 0) fail("cannot write");
    bytes = bytes.subspan(to_size(written));
  }
}

void AtomicFile::commit() {
  if (!sync_descriptor(fd_)) fail("cannot sync");
  // Network file systems may report a full disk only here.
  if (::close(std::exchange(fd_, -1)) != 0) fail("cannot close");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot rename the temporary file");
  temporary_.clear();
  sync_folder(folder_);
}

void write_file_atomically(const std::string& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void sync_folder(const std::string& folder) {
  const Descriptor directory{open_retrying(folder.c_str(), O_RDONLY | O_DIRECTORY)};
  if (directory.fd < 0) throw Error(concat(folder, ": cannot open: ", std::strerror(errno)));
  if (!sync_descriptor(directory.fd))
    throw Error(concat(folder, ": cannot sync: ", std::strerror(errno)));
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out(text.substr(0, max_bytes));
  unsigned char before = 0;
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || (before == 0xc2 && byte >> 5 == 4)) c = '?';
    before = byte;
  }
  if (text.size() > max_bytes) out += "...";
  return out;
}

}  // namespace heddle
