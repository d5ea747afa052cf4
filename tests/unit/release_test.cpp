// ds_version as releases write it: deepspeed/git_version_info.py.
#include "deepspeed/release.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>

namespace dsckpt {
namespace {

TEST(Release, IsReadOfWhatDsVersionHas) {
  using Numbers = std::array<uint32_t, 3>;
  EXPECT_EQ(release_of("0.16.4")->numbers, (Numbers{0, 16, 4}));
  EXPECT_EQ(release_of("0.9.5+fe5bdd4")->numbers, (Numbers{0, 9, 5}));
  EXPECT_EQ(release_of("0.17")->numbers, (Numbers{0, 17, 0}));
  EXPECT_EQ(release_of("1.0.0rc1")->numbers, (Numbers{1, 0, 0}));
  EXPECT_EQ(release_of("0.13.")->numbers, (Numbers{0, 13, 0}));
  for (const char* text : {"", "unknown", ".1", "-1.2.3", "99999999999.1"}) {
    EXPECT_FALSE(release_of(text)) << text;
  }
}

TEST(Release, IsComparedNumberByNumber) {
  EXPECT_LT(*release_of("0.9.5"), *release_of("0.13.2"));
  EXPECT_LT(*release_of("0.13.1"), kNoStepAtStart);
  EXPECT_FALSE(*release_of("0.13.2") < kNoStepAtStart);
  EXPECT_LT(*release_of("0.7.0"), kZeroStageEnum);
  EXPECT_LT(*release_of("0.5.10"), kEmptyPlaceholders);
}

}  // namespace
}  // namespace dsckpt
