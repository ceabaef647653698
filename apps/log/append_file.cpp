#include "apps/log/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace heddle {
namespace {

constexpr size_t kMaxKept = 16 << 20;  // bytes

}  // namespace

AppendFile::AppendFile(const std::string& path, Start start) : path_(path) {
  const int how = start == Start::fresh ? O_EXCL : 0;
  // O_NONBLOCK: opening a pipe must not wait for its other end.
  fd_ = ::open(path.c_str(),
               O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | how, 0666);
  check(fd_ >= 0 || errno != ELOOP, path,
        ": is a symbolic link; expected a file: nothing is written through links");
  if (fd_ < 0) throw Error(concat(path, ": cannot be written: ", std::strerror(errno)));
  struct stat status {};
  if (::fstat(fd_, &status) == 0 && S_ISREG(status.st_mode)) {
    size_ = status.st_size;
    return;
  }
  ::close(fd_);
  throw InputError(path + ": expected a regular file, found a device, pipe or socket");
}

AppendFile::~AppendFile() {
  (void)flush();
  ::close(fd_);
}

void AppendFile::write(std::string_view record) {
  if (kept_.size() + record.size() > kMaxKept)
    ++dropped_;
  else
    kept_ += record;
}

int64_t AppendFile::flush() {
  while (!kept_.empty()) {
    const ssize_t written = ::write(fd_, kept_.data(), kept_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      why_ = written < 0 ? std::strerror(errno) : "the system accepts no data";
      break;
    }
    size_ += written;
    kept_.erase(0, static_cast<size_t>(written));
  }
  if (kept_.empty() && dropped_ == 0) why_.clear();
  return size_ + static_cast<int64_t>(kept_.size());
}

void AppendFile::truncate(int64_t bytes) {
  if (::ftruncate(fd_, bytes) != 0)
    throw Error(concat(path_, ": cannot be truncated: ", std::strerror(errno)));
  size_ = bytes;
}

std::string AppendFile::trouble() const {
  if (why_.empty()) return "";
  return concat(path_, ": cannot be written: ", why_, dropped_ == 0 ? "" : "; records missing: ",
                dropped_ == 0 ? "" : std::to_string(dropped_));
}

}  // namespace heddle
