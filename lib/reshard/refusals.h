// The reasons to refuse a reshard: one table, in the order in which they are tested.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <type_traits>

#include "checkpoint/checkpoint.h"
#include "dsckpt/error.h"
#include "reshard/choice.h"

namespace dsckpt {

// A row of the table.
struct Refusal {
  // The place that the error speaks of.
  enum class Place : uint8_t {
    nowhere,
    source_folder,
    source_file,
    source_states,  // optimizer.state of the file
    source_config,  // ds_config of the file
    like_folder,
    reference_file,
    reference_config,
    reference_shapes,  // param_shapes of the file
  };

  // A function or lambda that says whether the row applies, or what it found.
  class Condition {
   public:
    template <typename Test>
    requires std::is_invocable_r_v<bool, Test, const Choice&>
    constexpr Condition(Test test) : test_(test) {}
    template <typename Search>
    requires std::is_invocable_r_v < std::optional<Found>, Search,
    const Choice& > constexpr Condition(Search search) : search_(search) {}

    std::optional<Found> operator()(const Choice& choice) const {
      if (search_ != nullptr) return search_(choice);
      return test_(choice) ? std::optional<Found>(Found{}) : std::nullopt;
    }

   private:
    bool (*test_)(const Choice&) = nullptr;
    std::optional<Found> (*search_)(const Choice&) = nullptr;
  };

  // The message, or a function or lambda that makes it.
  class Text {
   public:
    constexpr Text(const char* text) : text_(text) {}
    template <typename Make>
    requires std::is_invocable_r_v<std::string, Make, const Choice&>
    constexpr Text(Make make) : make_(make) {}

    std::string operator()(const Choice& choice) const {
      return make_ != nullptr ? make_(choice) : std::string(text_);
    }

   private:
    const char* text_ = "";
    std::string (*make_)(const Choice&) = nullptr;
  };

  Step after;  // what has to be decided: the condition looks at nothing else
  ErrorKind kind;
  Place place;
  Condition condition;
  Text text;  // unless the condition found one
  const char* hint = "";
};

std::span<const Refusal> refusals();

// Throws the error of the first row for `step` whose condition holds.
void refuse(const Choice& choice, Step step);

// Throws UnsupportedError for AutoEP folded with tensor parallelism.
void refuse_folded(const Checkpoint& source);

}  // namespace dsckpt
