// As deepspeed/runtime/swap_tensor/optimizer_utils.py names swap files.
#include "deepspeed/swap_name.h"

#include <gtest/gtest.h>

#include <string>

#include "dsckpt/error.h"

namespace dsckpt {
namespace {

TEST(SwapName, TakesApartTheNumbersOfASubGroup) {
  EXPECT_EQ(SubGroupId::parse("0_7"), (SubGroupId{0, 7}));
  EXPECT_EQ(SubGroupId::parse("18446744073709551615_18446744073709551615").last, UINT64_MAX);
  EXPECT_EQ(SubGroupId::parse("12_12").to_string(), "12_12");
}

TEST(SwapName, RefusesWhatDeepSpeedDoesNotWrite) {
  for (const char* id : {"", "_", "7", "0_", "_7", "00_7", "0_07", "-1_7", "+0_7", "0_7_", "0_7 ",
                         " 0_7", "0-7", "0x0_7", "18446744073709551616_0", "../0_7"}) {
    EXPECT_THROW(SubGroupId::parse(id), CorruptError) << id;
  }
}

TEST(SwapName, NamesFilesInTheFolderOfTheRank) {
  EXPECT_EQ(swap_file_name(3, "0_7"), "rank03/0_7.tensor.swp");
  EXPECT_EQ(swap_file_name(123, "exp_avg-0_7"), "rank123/exp_avg-0_7.tensor.swp");
  for (const std::string& id :
       {std::string("../../0_7"), std::string("/etc/0_7"), std::string("exp_avg\0-0_7", 12)}) {
    EXPECT_THROW(swap_file_name(0, id), CorruptError);
  }
}

}  // namespace
}  // namespace dsckpt
