// Errors: exceptions, typed, and nothing else.
//
// Everything the library throws is an Error. Its kind says what the caller can do about it (and is
// the tool's exit code), its Where says which bytes are meant. Expected outcomes ("is there such a
// key?") are return values, never exceptions.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace dsckpt {

enum class ErrorKind {
  usage,         // the request itself is wrong: a bad option, an output place we refuse
  corrupt,       // the bytes of one file are not what its format says
  inconsistent,  // files disagree with one another, or some are missing
  unsupported,   // valid, but not read or written by this library
  io,            // the operating system refused: permission, space, a failing disk
  interrupted,   // SIGINT or SIGTERM
};

// The lower-case name of a kind, as `--json` reports it.
const char* to_string(ErrorKind kind);

// The place an error speaks of. Empty fields are unknown; outer layers fill them in (see
// in_context).
struct Where {
  // Path, as the user would recognise it.
  std::string file = {};
  // Record inside the file, "data/7", or a key, "fp32_flat_groups[2]".
  std::string member = {};
  // Name of a parameter or buffer.
  std::string tensor = {};
  // Bytes from the start of the file, or elements of a flat group.
  std::optional<uint64_t> offset = {};

  // "file: member: tensor: at 123: ", with what is empty left out.
  std::string prefix() const;
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, Where where, std::string message);

  ErrorKind kind() const { return kind_; }
  const Where& where() const { return where_; }
  const std::string& message() const { return message_; }  // what() without the place
  int errno_value() const { return errno_value_; }         // 0 unless kind() is io
  // A next step for the user, or "".
  const std::string& hint() const { return hint_; }

  Error&& with_hint(std::string hint) &&;

  // The same error with the empty fields of its Where taken from `outer`.
  [[nodiscard]] Error within(const Where& outer) const;

 protected:
  int errno_value_ = 0;

 private:
  ErrorKind kind_;
  Where where_;
  std::string message_;
  std::string hint_;
};

struct UsageError : Error {
  explicit UsageError(std::string message) : Error(ErrorKind::usage, {}, std::move(message)) {}
};
struct CorruptError : Error {
  CorruptError(Where where, std::string message)
      : Error(ErrorKind::corrupt, std::move(where), std::move(message)) {}
};
struct InconsistentError : Error {
  InconsistentError(Where where, std::string message)
      : Error(ErrorKind::inconsistent, std::move(where), std::move(message)) {}
};
struct UnsupportedError : Error {
  UnsupportedError(Where where, std::string message)
      : Error(ErrorKind::unsupported, std::move(where), std::move(message)) {}
};
struct IoError : Error {
  // `message` says what was tried ("cannot open"); the text of `errno_value` is appended unless 0.
  IoError(Where where, std::string message, int errno_value);
};
struct InterruptedError : Error {
  InterruptedError() : Error(ErrorKind::interrupted, {}, "interrupted") {}
};

// Runs `body`; an Error that leaves it gets the empty fields of its Where from `where`.
template <typename Body>
auto in_context(const Where& where, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw error.within(where);
  }
}

}  // namespace dsckpt
