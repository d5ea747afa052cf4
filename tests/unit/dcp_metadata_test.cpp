// The contents of `.metadata` of torch.distributed.checkpoint: of files that torch wrote, and
// changed ones.
#include "format/dcp_metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "pickle/pickle.h"
#include "support/expect_error.h"
#include "support/temp_file.h"

namespace dsckpt {
namespace {

std::string testdata(const std::string& name) {
  return std::string(DSCKPT_TESTDATA) + "/dcp/" + name;
}

DcpMetadata read(const std::string& name) {
  return read_dcp_metadata(InputFile(testdata(name)));
}

const DcpValue& value(const DcpMetadata& metadata, const std::string& name) {
  const auto at = std::find_if(metadata.values.begin(), metadata.values.end(),
                               [&](const DcpValue& each) { return each.name == name; });
  if (at == metadata.values.end()) throw std::runtime_error("no value " + name);
  return *at;
}

// The run of make_dcp.py: a layer of 5 rows and 3 columns on 2 ranks.
TEST(DcpMetadata, IsWhatTorchWrote) {
  for (const std::string name :
       {"nested/.metadata", "metadata/protocol2", "metadata/protocol3", "metadata/protocol5"}) {
    SCOPED_TRACE(name);
    const DcpMetadata metadata = read(name);
    const DcpValue& weight = value(metadata, "model.weight");
    ASSERT_TRUE(weight.tensor.has_value());
    EXPECT_EQ(weight.tensor->dtype, DType::float32);
    EXPECT_EQ(weight.tensor->shape, (Shape{5, 3}));
    ASSERT_EQ(weight.tensor->chunks.size(), 2u);
    EXPECT_EQ(weight.tensor->chunks[0].offsets, (Shape{0, 0}));
    EXPECT_EQ(weight.tensor->chunks[0].sizes, (Shape{3, 3}));
    EXPECT_EQ(weight.tensor->chunks[0].place.file, "__0_0.distcp");
    EXPECT_EQ(weight.tensor->chunks[1].offsets, (Shape{3, 0}));
    EXPECT_EQ(weight.tensor->chunks[1].sizes, (Shape{2, 3}));
    EXPECT_EQ(weight.tensor->chunks[1].place.file, "__1_0.distcp");
    EXPECT_EQ(weight.path, (std::vector<DcpStep>{"model", "weight"}));
    const DcpValue& step = value(metadata, "optim.state.bias.step");
    ASSERT_TRUE(step.tensor.has_value());
    EXPECT_EQ(step.tensor->shape, Shape{});
    EXPECT_EQ(step.path, (std::vector<DcpStep>{"optim", "state", "bias", "step"}));
    const DcpValue& rate = value(metadata, "optim.param_groups.0.lr");
    EXPECT_FALSE(rate.tensor.has_value());
    EXPECT_GT(rate.pickle.size, 0u);
    EXPECT_EQ(rate.path, (std::vector<DcpStep>{"optim", "param_groups", int64_t{0}, "lr"}));
    // The model's come first, as in the state_dict.
    EXPECT_EQ(metadata.values[0].name, "model.weight");
    EXPECT_EQ(metadata.values[1].name, "model.bias");
  }
}

TEST(DcpMetadata, OtherPicklesAreRefused) {
  const test::TempFolder folder;
  const auto refuse = [&](const std::string& bytes, const std::string& text) {
    const InputFile file(folder.write("metadata", bytes));
    EXPECT_ERROR(read_dcp_metadata(file), CorruptError, text);
  };
  refuse("", "");
  refuse("Metadata-Version: 2.1\n", "");
  refuse("\x80\x02}.", "dict where torch.distributed.checkpoint has its Metadata");
  refuse(std::string("\x80\x02"
                     "cos\nsystem\nX\x02\0\0\0id\x85R.",
                     23),
         "os.system where torch.distributed.checkpoint has its Metadata");
}

}  // namespace
}  // namespace dsckpt
