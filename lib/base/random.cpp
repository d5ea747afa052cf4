#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "dsckpt/error.h"

namespace dsckpt {

uint64_t random_number() {
  uint64_t number = 0;
  // The system returns so few bytes whole or not at all.
  if (::getrandom(&number, sizeof number, 0) != sizeof number) {
    throw IoError({}, "the system gives no random numbers", errno);
  }
  return number;
}

}  // namespace dsckpt
