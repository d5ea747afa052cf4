#include <cstring>

#include "dsckpt/error.h"

namespace dsckpt {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage";
    case ErrorKind::corrupt:
      return "corrupt";
    case ErrorKind::inconsistent:
      return "inconsistent";
    case ErrorKind::unsupported:
      return "unsupported";
    case ErrorKind::io:
      return "io";
    case ErrorKind::interrupted:
      return "interrupted";
  }
  return "unknown";
}

std::string Where::prefix() const {
  std::string text;
  for (const std::string* part : {&file, &member, &tensor}) {
    if (!part->empty()) text += *part + ": ";
  }
  if (offset) text += "at " + std::to_string(*offset) + ": ";
  return text;
}

Error::Error(ErrorKind kind, Where where, std::string message)
    : std::runtime_error(where.prefix() + message),
      kind_(kind),
      where_(std::move(where)),
      message_(std::move(message)) {}

Error::Error(const Error& error, std::string message)
    : Error(error.kind_, error.where_, std::move(message)) {
  errno_value_ = error.errno_value_;
  hint_ = error.hint_;
}

Error Error::within(const Where& outer) const {
  Where where = where_;
  if (where.file.empty()) where.file = outer.file;
  if (where.member.empty()) where.member = outer.member;
  if (where.tensor.empty()) where.tensor = outer.tensor;
  if (!where.offset) where.offset = outer.offset;
  Error copy(kind_, std::move(where), message_);
  copy.errno_value_ = errno_value_;
  copy.hint_ = hint_;
  return copy;
}

bool Error::is_damage() const {
  return kind_ == ErrorKind::corrupt || kind_ == ErrorKind::inconsistent || kind_ == ErrorKind::io;
}

Error Error::hinted(const std::string& hint) const {
  Error copy = *this;
  if (copy.hint_.empty()) copy.hint_ = hint;
  return copy;
}

void Error::raise() const {
  switch (kind_) {
    case ErrorKind::usage:
      throw UsageError(*this);
    case ErrorKind::corrupt:
      throw CorruptError(*this);
    case ErrorKind::inconsistent:
      throw InconsistentError(*this);
    case ErrorKind::unsupported:
      throw UnsupportedError(*this);
    case ErrorKind::io:
      throw IoError(*this);
    case ErrorKind::interrupted:
      throw InterruptedError(*this);
  }
  throw *this;
}

IoError::IoError(Where where, std::string message, int errno_value)
    : ErrorOfKind(ErrorKind::io, std::move(where),
                  errno_value == 0 ? message : message + ": " + std::strerror(errno_value)) {
  errno_value_ = errno_value;
}

}  // namespace dsckpt
