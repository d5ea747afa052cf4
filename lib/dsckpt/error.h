// Errors: typed exceptions, and nothing else.
//
// Everything the library throws is an Error. Its kind says what the caller can do about it, and is
// the tool's exit code. Its Where says which bytes are meant. Expected outcomes ("is there such a
// key?") are return values, never exceptions.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "dsckpt/export.h"

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
DSCKPT_EXPORT const char* to_string(ErrorKind kind);

// The place that an error is about. Empty fields are unknown; outer layers fill them in (see
// in_context).
struct DSCKPT_EXPORT Where {
  // The path, as the user would recognise it.
  std::string file = {};
  // A record in the file, "data/7", or a key, "fp32_flat_groups[2]".
  std::string member = {};
  // The name of a parameter or buffer.
  std::string tensor = {};
  // Bytes from the start of the file, or elements of a flat group.
  std::optional<uint64_t> offset = {};

  // "file: member: tensor: at 123: ", without the empty fields.
  std::string prefix() const;
};

class DSCKPT_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, Where where, std::string message);
  // The same error with another message.
  Error(const Error& error, std::string message);

  ErrorKind kind() const { return kind_; }
  // True if the files are at fault: corrupt, inconsistent or io.
  bool is_damage() const;
  const Where& where() const { return where_; }
  const std::string& message() const { return message_; }  // what() without the place
  int errno_value() const { return errno_value_; }         // 0 unless kind() is io
  // A next step for the user, or "".
  const std::string& hint() const { return hint_; }

  // The same error with the empty fields of its Where taken from `outer`.
  [[nodiscard]] Error within(const Where& outer) const;
  // The same error with `hint`, if it has none.
  [[nodiscard]] Error hinted(const std::string& hint) const;
  // Throws it as the class of its kind, one of those below.
  [[noreturn]] void raise() const;

 protected:
  int errno_value_ = 0;
  std::string hint_;

 private:
  ErrorKind kind_;
  Where where_;
  std::string message_;
};

// The common part of the classes of kinds; `Leaf` is one of them.
template <typename Leaf>
struct DSCKPT_EXPORT ErrorOfKind : Error {
  using Error::Error;
  explicit ErrorOfKind(const Error& error) : Error(error) {}

  Leaf with_hint(std::string hint) && {
    hint_ = std::move(hint);
    return std::move(static_cast<Leaf&>(*this));
  }
};

struct DSCKPT_EXPORT UsageError : ErrorOfKind<UsageError> {
  using ErrorOfKind::ErrorOfKind;
  explicit UsageError(std::string message)
      : ErrorOfKind(ErrorKind::usage, {}, std::move(message)) {}
};
struct DSCKPT_EXPORT CorruptError : ErrorOfKind<CorruptError> {
  using ErrorOfKind::ErrorOfKind;
  CorruptError(Where where, std::string message)
      : ErrorOfKind(ErrorKind::corrupt, std::move(where), std::move(message)) {}
};
struct DSCKPT_EXPORT InconsistentError : ErrorOfKind<InconsistentError> {
  using ErrorOfKind::ErrorOfKind;
  InconsistentError(Where where, std::string message)
      : ErrorOfKind(ErrorKind::inconsistent, std::move(where), std::move(message)) {}
};
struct DSCKPT_EXPORT UnsupportedError : ErrorOfKind<UnsupportedError> {
  using ErrorOfKind::ErrorOfKind;
  UnsupportedError(Where where, std::string message)
      : ErrorOfKind(ErrorKind::unsupported, std::move(where), std::move(message)) {}
};
struct DSCKPT_EXPORT IoError : ErrorOfKind<IoError> {
  using ErrorOfKind::ErrorOfKind;
  // `message` says which action failed ("cannot open"). The text of `errno_value` is appended
  // unless it is 0.
  IoError(Where where, std::string message, int errno_value);
};
struct DSCKPT_EXPORT InterruptedError : ErrorOfKind<InterruptedError> {
  using ErrorOfKind::ErrorOfKind;
  InterruptedError() : ErrorOfKind(ErrorKind::interrupted, {}, "interrupted") {}
};

// Runs `body`. An Error that it throws gets the empty fields of its Where from `where`, and keeps
// its class.
template <typename Body>
auto in_context(const Where& where, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    error.within(where).raise();
  }
}

// The same, but `where` is a function, called only for an error.
template <std::invocable MakeWhere, typename Body>
auto in_context(const MakeWhere& where, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    error.within(where()).raise();
  }
}

}  // namespace dsckpt
