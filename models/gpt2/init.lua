-- init.lua -- require 'models.gpt2': new(preset_or_options [, overrides]), presets, from_config.
local model = require 'models.gpt2.model'

return {
  new = model.new,
  presets = require 'models.gpt2.presets',
  weights = require 'models.gpt2.weights',
  GPT2 = model.GPT2, Block = model.Block,
}
