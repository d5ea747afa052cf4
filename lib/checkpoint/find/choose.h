// Which of several saved states a path means.
//
// One rule: where two answers are possible, they are listed and nothing is done. States are ages of
// one model if their names say so, their parameters are the same, and their steps differ. Then the
// highest step is meant. Names are not steps, and times mean nothing.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/find/saved_states.h"

namespace dsckpt {

struct ChosenState {
  SavedState state;
  std::string note = {};  // the choice and its alternatives; "" where the path leaves no choice
  // The others of the same model, the newest first: meant as well, should it be damaged.
  std::vector<SavedState> older = {};
  std::vector<SavedState> damaged = {};  // of no known step; the note names them
};

struct StatesOfModel {
  std::vector<SavedState> states;
  std::string in_files = {};  // the model, if it is still to be found within their files
};

// The states of `model` among `states`, which are below `path`. One of their folders or files has
// the name `model`, or has it beside the words and numbers of ages ("actor" of "actor_step7"). All
// of them for "". If none has this name, those whose files may hold several models. Throws
// UsageError that lists the models, with their steps, if there are none of these either.
StatesOfModel of_model(Folders& folders, const std::filesystem::path& path,
                       std::vector<SavedState> states, const std::string& model);

// `states` without the other ages of a state that a `latest` below `path` names: those beside it,
// by their names. The writer of `latest` has said which one is meant.
std::vector<SavedState> without_older_tags(const std::filesystem::path& path,
                                           std::vector<SavedState> states);

// True if choose() needs look_into() of all.
bool is_told_by_names(const std::filesystem::path& path, const std::vector<SavedState>& states);

// Chooses one of `states`, which are below `path` and not empty. The state that a `latest` in
// `path` names is chosen even if it is damaged. Throws InconsistentError that lists them if several
// may be meant, or none can be read. The note says that they are those of `model`.
ChosenState choose(const std::filesystem::path& path, std::vector<SavedState> states,
                   const std::string& model = {});

// All of them, the oldest first; throws as choose(). Those that are damaged come first.
std::vector<SavedState> sorted_by_age(const std::filesystem::path& path,
                                      std::vector<SavedState> states);

// The model of a state, as of_model() takes it, by the names of folders and files.
std::string model_name(const std::filesystem::path& path, const SavedState& state);

// A line for each, for messages: its path, what it is, its step.
std::vector<std::string> lines_of(const std::filesystem::path& path,
                                  const std::vector<SavedState>& states);

}  // namespace dsckpt
