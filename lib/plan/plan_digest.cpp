#include "plan/plan_digest.h"

#include <string>

#include "base/bytes.h"
#include "plan/plan_part.h"

namespace dsckpt {

Sha256Digest digest_of(const CopyPlan& plan) {
  Sha256 sha256;
  VarintWriter writer;
  const auto add = [&] {
    const std::string bytes = writer.take();
    sha256.update(as_byte_span(bytes));
  };
  write_plan(writer, plan, add);
  add();
  return sha256.digest();
}

}  // namespace dsckpt
