// Files: reading, and writing that never leaves an incomplete file under its final name.
//
// Files are read, not mapped: truncating a mapped file kills the program that reads it. A file is
// written to a temporary in the same folder, which is synced and renamed; then the folder is
// synced. A reader of the path sees the old content or the new one, even after a crash.
//
//   AtomicFile out("runs/a/run.json");
//   out.write(text);
//   out.commit();          // without it the temporary is removed and the path is unchanged
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace heddle {

// A regular file, open for reading. Move-only.
class InputFile {
 public:
  // Throws InputError when there is no such regular file, Error when there is one that cannot be
  // read (permission, input/output error, too many open files); both name the path and the reason.
  explicit InputFile(const std::string& path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;

  // Fills `out` with the bytes starting at `offset`. Thread-safe. Throws InputError when the file
  // ends earlier, because it was truncated, Error when it cannot be read.
  void read(int64_t offset, std::span<std::byte> out) const;

  int64_t size() const { return size_; }  // bytes, when it was opened
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// Returns the whole content of a regular file. Throws as InputFile does.
std::string read_text_file(const std::string& path);

// A file that is being written. Every function throws Error with the path and the system's reason
// (no such folder, permission denied, no space left).
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();  // removes the temporary unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  // Syncs, renames to the final name and syncs the folder.
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;

  std::string path_, folder_, temporary_;
  int fd_ = -1;
};

// Writes a whole file as described above.
void write_file_atomically(const std::string& path, std::string_view content);

// Makes a folder's entries durable. Throws Error.
void sync_folder(const std::string& folder);

// Makes file text fit for a one-line message: '?' for control characters, long text truncated.
std::string printable(std::string_view text, size_t max_bytes = 80);

}  // namespace heddle
