// Files: read-only mappings, and writing that never leaves half a file under a final name.
//
// The content goes to a temporary file in the same folder, which is synced and renamed; then the
// folder is synced. Whoever looks at the path sees the old content or the new, also after a crash.
//
//   AtomicFile out("runs/a/run.json");
//   out.write(text);
//   out.commit();          // without it the temporary is removed and the path left as it was
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace heddle {

// A regular file mapped into memory, read-only. Move-only.
class MappedFile {
 public:
  // Throws InputError when there is no such regular file, Error when it cannot be read; both name
  // the path and the system's reason.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::span<const std::byte> bytes_;
};

// The whole content of a regular file. Throws as MappedFile does.
std::string read_text_file(const std::string& path);

// A file in the making. Every function throws Error with the path and the system's reason
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

// Text from a file made fit for a one-line message: control characters become '?', long text is
// cut.
std::string printable(std::string_view text, size_t max_bytes = 80);

}  // namespace heddle
