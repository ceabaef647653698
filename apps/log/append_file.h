// A file that grows during a run and never ends it: what the disk does not take is
// kept in memory, up to 16 MB, and tried again with the next flush. A record that was cut off in
// its middle is thus completed before the next one follows.
//
//   AppendFile lines("runs/a/metrics.jsonl", AppendFile::Start::append);
//   lines.write("{\"step\":1}\n");
//   lines.flush();
//   if (!lines.trouble().empty()) ...      // not all of it is in the file
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heddle {

class AppendFile {
 public:
  enum class Start : uint8_t { append, fresh };
  // Opens a file that may be there, or one that must not. Throws InputError for a symbolic link and
  // for what is no regular file, Error when it cannot be opened.
  AppendFile(const std::string& path, Start start);
  ~AppendFile();  // flushes
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  int descriptor() const { return fd_; }
  // Adds a record as a whole. When too much is kept already it is dropped, and counted.
  void write(std::string_view record);
  // Hands over what the system takes. Returns the bytes of the file once it has taken all.
  int64_t flush();
  // Cuts the file after so many bytes. Throws Error.
  void truncate(int64_t bytes);
  // Why not everything is in the file, with its path; empty when all is.
  std::string trouble() const;

 private:
  std::string path_, kept_, why_;
  int64_t size_ = 0, dropped_ = 0;
  int fd_ = -1;
};

}  // namespace heddle
