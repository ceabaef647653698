// A file that grows during a run and never ends it: what cannot be written to disk is kept in
// memory, up to 16 MB, and tried again with the next flush. A record that was written in part is
// thus completed before the next one.
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

// Used by one thread.
class AppendFile {
 public:
  enum class Start : uint8_t { append, fresh };
  // Opens a file to append to, new or existing; `fresh`: it must not exist. Throws InputError for a
  // symbolic link and for anything but a regular file, Error if it cannot be opened.
  AppendFile(const std::string& path, Start start);
  ~AppendFile();  // flushes
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  int descriptor() const { return fd_; }
  // Adds a record. If too much is waiting already, the record is dropped and counted.
  void write(std::string_view record);
  // Writes what the system accepts. Returns the bytes of the file once everything is written.
  int64_t flush();
  // Truncates the file to `bytes`. Throws Error.
  void truncate(int64_t bytes);
  // Returns why not everything is in the file, with its path; empty if everything is.
  std::string trouble() const;

 private:
  std::string path_, kept_, why_;
  int64_t size_ = 0, dropped_ = 0;
  int fd_ = -1;
};

}  // namespace heddle
